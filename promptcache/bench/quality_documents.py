"""Cases as schemas and prompts: one document in every way it can be served.

Comes in: a case of `promptcache.demo.questions`. Goes out: XML text. Knows no engine and no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from xml.sax.saxutils import escape, quoteattr

from promptcache.demo import Case, Fact, QuestionSet

_SLOT_LENGTH = 12  # tokens; values are shorter


class Way(StrEnum):
    """How a document is served: as plain text, with modules of some context, or as `guaranteed` with quantized KV."""

    PLAIN = "plain"
    GUARANTEED = "guaranteed"
    OWN = "own"
    SCAFFOLD = "scaffold"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def keep(self) -> str:
        """How KV is kept."""
        return self.value if self in (Way.INT8, Way.INT4) else "full"

    @property
    def beside(self) -> tuple[Way, ...]:
        """What it is compared with: plain prefill, and where KV is quantized what differs in nothing but that."""
        if self is Way.PLAIN:
            return ()
        return (Way.PLAIN,) if self.keep == "full" else (Way.PLAIN, Way.GUARANTEED)


CACHED = (Way.GUARANTEED, Way.OWN, Way.SCAFFOLD)
"""The ways that are compared unless others are asked for."""


def all_ways(chosen: Iterable[Way]) -> tuple[Way, ...]:
    """Return these ways and those that they are compared with, plain prefill first of all."""
    wanted = {Way.PLAIN, *chosen, *(each for way in chosen for each in way.beside)}
    return tuple(way for way in Way if way in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSet:
    """A question set as modules: with `arguments`, every value is a parameter that the prompt fills."""

    questions: QuestionSet
    arguments: bool = False


SETS = {
    "facts": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3)),
    "left-out": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3, asked="left out")),
    "near": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3, asked="near")),
    "unseen": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3, names="unseen")),
    "arguments": CaseSet(questions=QuestionSet(num_entities=4, num_attributes=3), arguments=True),
}
"""4 optional modules of 3 facts: asked about a fact; about a fifth module, which is left out; about a name that is like
one of the document's; with names and values of syllables that the demo model has never seen; with arguments as values.
"""


def schema_xml(case: Case, way: Way, name: str, *, arguments: bool, instruction: str = "") -> str:
    """Write the schema of one document.

    Served plainly it is one system turn of plain text, which is tokenized as a whole. Otherwise every module is
    optional, in a system turn that belongs to a module itself: so a scaffold over all that the prompt will use leaves
    out nothing, not even the turn's end.
    """
    lines = [escape(instruction)] if instruction else []
    if way is Way.PLAIN:
        if case.absent == 0 and not instruction:
            lines = [""]  # a module begins with its separator whatever is left out before it
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
    """Write the prompt: all present modules and the question; with an `answer`, also the assistant's words so far."""
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
