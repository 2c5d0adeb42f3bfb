"""Cases of `promptcache.demo.questions` as schemas and prompts, in every way that a document can be served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from xml.sax.saxutils import escape, quoteattr

from promptcache.demo import Case, Fact, QuestionSet

_SLOT_LENGTH = 12  # tokens; values are shorter


class Way(StrEnum):
    """A way to serve a document: as plain text, as modules with a context, or as `guaranteed` with quantized KV."""

    PLAIN = "plain"
    GUARANTEED = "guaranteed"
    OWN = "own"
    SCAFFOLD = "scaffold"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def keep(self) -> str:
        """The codec of stored KV, as `engine.add_schema(keep=...)` takes it."""
        return self.value if self in (Way.INT8, Way.INT4) else "full"

    @property
    def beside(self) -> tuple[Way, ...]:
        """Ways to compare with: plain prefill, and for quantized KV the same way with full KV."""
        if self is Way.PLAIN:
            return ()
        return (Way.PLAIN,) if self.keep == "full" else (Way.PLAIN, Way.GUARANTEED)


CACHED = (Way.GUARANTEED, Way.OWN, Way.SCAFFOLD)
"""Ways that `promptcache bench quality` compares by default."""


def all_ways(chosen: Iterable[Way]) -> tuple[Way, ...]:
    """Return these ways and those that they are compared with, plain prefill first."""
    wanted = {Way.PLAIN, *chosen, *(each for way in chosen for each in way.beside)}
    return tuple(way for way in Way if way in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSet:
    """A set of questions. With `arguments`, each value is an argument of the prompt."""

    questions: QuestionSet
    arguments: bool = False


SETS = {
    "facts": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3)),
    "left-out": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3, asked="left out")),
    "near": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3, asked="near")),
    "unseen": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3, names="unseen")),
    "arguments": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3), arguments=True),
}
"""Each document has 4 optional modules of 3 facts.

`facts` asks about one fact, `left-out` about a fifth module that the prompt does not select, and `near` about a name
that resembles one of the document. `unseen` uses names and values that the demo model was not trained on. `arguments`
passes the values as arguments.
"""


def schema_xml(case: Case, way: Way, name: str, *, arguments: bool, instruction: str = "") -> str:
    """Return the schema of one document.

    For plain prefill it is one system turn of text, which is tokenized as a whole. Otherwise each module is optional.
    The system turn belongs to a module too, so a scaffold over the prompt's modules also covers the end of the turn.
    """
    lines = [escape(instruction)] if instruction else []
    if way is Way.PLAIN:
        if case.absent == 0 and not instruction:
            lines = [""]  # a module starts with its separator, also if the modules before it are absent
        lines += [escape(" ".join(fact.sentence for fact in module)) for module in case.present]
        body = "\n".join(lines)
        return f'<schema name="{name}" whitespace="preserve"><system>{body}</system></schema>'
    modules = "".join(
        f'<module name="m{index}">{_content(module, arguments=arguments)}</module>'
        for index, module in enumerate(case.modules)
    )
    used = " ".join(("document", *(f"document/m{index}" for index in _indices(case))))
    scaffold = f'<scaffold modules="{used}"/>' if way is Way.SCAFFOLD else ""
    context = ' context="own"' if way is Way.OWN else ""
    document = f'<module name="document"><system>{"".join(lines)}{modules}</system></module>'
    return f'<schema name="{name}"{context}>{document}{scaffold}</schema>'


def prompt_xml(case: Case, way: Way, name: str, *, arguments: bool, answer: str | None = None) -> str:
    """Return the prompt: all present modules, the question, and the beginning of the assistant's `answer` if given."""
    modules = "".join(_reference(case, each, arguments=arguments) for each in _indices(case))
    used = "" if way is Way.PLAIN else f"<document>{modules}</document>"
    text = f"<user><text>{escape(case.question.text)}</text></user>"
    if answer is not None:
        text += f"<assistant><text>{escape(answer)}</text></assistant>"
    return f'<prompt schema="{name}">{used}{text}</prompt>'


def _indices(case: Case) -> Sequence[int]:
    return [index for index in range(len(case.modules)) if index != case.absent]


def _content(module: Sequence[Fact], *, arguments: bool) -> str:
    if not arguments:
        return escape(" ".join(fact.sentence for fact in module))
    return " ".join(
        f'{escape(fact.start)} <parameter name="v{number}" length="{_SLOT_LENGTH}"/>.'
        for number, fact in enumerate(module)
    )


def _reference(case: Case, index: int, *, arguments: bool) -> str:
    values = [f" v{number}={quoteattr(fact.value)}" for number, fact in enumerate(case.modules[index])]
    return f"<m{index}{''.join(values) if arguments else ''}/>"
