"""The smallest prompt that shows a fault: fewest modules, then shortest XML.

Comes in: a schema under test, and whether a prompt shows it. Goes out: that prompt. Hypothesis shrinks choice by choice
and stops where no single step is simpler; here prompts are listed from the smallest on, plain ones only: arguments that
are empty, short, full or what stands there anyway, at most two of them out of the ordinary, and the shortest messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, groupby, product

from promptcache.diagnostics import PromptError
from promptcache.language.schema import Parameter, Role
from promptcache.layout import fill_tokens
from promptcache.testing.choices import Key, Said, fits
from promptcache.testing.prompt_xml import Choice, write_prompt
from promptcache.testing.selecting import list_selections
from promptcache.testing.subject import PromptCase, Subject
from promptcache.testing.token_texts import plain_argument

MAX_TRIED = 3000
_MAX_CHANGED = 2
_SAID: Sequence[Sequence[Said]] = (
    (),
    (Said(text="a"),),
    *((Said(role=role.value, text=text),) for role in Role for text in ("", "a")),
)


def size_of(case: PromptCase) -> tuple[int, int]:
    """Return what is to be smallest: the number of modules, then the bytes of XML."""
    return len(case.selection.modules), len(case.xml.encode())


def smallest_failing(
    subject: Subject, fails: Callable[[PromptCase], bool], *, below: PromptCase | None = None
) -> PromptCase | None:
    """Return the smallest plain prompt that fails, if one is found that is smaller than the one given.

    Args:
        subject: The schema.
        fails: Whether a prompt shows the fault.
        below: A prompt that does.
    """
    limit = size_of(below) if below else None
    for number, (size, xml) in enumerate(_small_prompts(subject)):
        if number == MAX_TRIED or (limit is not None and size >= limit):
            return None
        try:
            case = subject.case(xml)
        except PromptError:  # it is empty
            continue
        if fails(case):
            return case
    return None


def _small_prompts(subject: Subject) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield prompts with their sizes, the smallest first."""
    listed = list_selections(subject.schema) or ()
    for number, selections in groupby(listed, key=len):
        written = (
            write_prompt(lambda _: 0, subject.schema, choice).document()
            for modules in selections
            for choice in _choices(subject, modules)
        )
        yield from sorted({((number, len(xml.encode())), xml) for xml in written})


def _choices(subject: Subject, modules: frozenset[str]) -> Iterator[Choice]:
    options: dict[Key, list[str | None]] = {
        (owner, name): _options(parameter, subject)
        for owner in ("", *sorted(modules))
        for name, parameter in subject.schema.parameters[owner].items()
    }
    for changed in (some for size in range(_MAX_CHANGED + 1) for some in combinations(options, size)):
        for texts in product(*(options[key][1:] for key in changed)):
            drawn = {key: known[0] for key, known in options.items()} | dict(zip(changed, texts, strict=True))
            arguments = {key: text for key, text in drawn.items() if text is not None}
            for said in _SAID:
                yield Choice(modules=modules, arguments=arguments, messages=said)


def _options(parameter: Parameter, subject: Subject) -> list[str | None]:
    """Return what a slot may get, the plainest first."""
    plain = plain_argument(parameter, subject.tokenizer) if parameter.required else None
    full = fill_tokens("", "x", parameter.length, subject.tokenizer)
    known = (parameter.default, parameter.placeholder, *parameter.choices)
    fitting = (
        text for text in ("", "a", full, *known) if text is not None and fits(parameter, text, subject.tokenizer)
    )
    return list(dict.fromkeys((plain, *fitting)))
