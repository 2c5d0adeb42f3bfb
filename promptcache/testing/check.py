"""Checks of one schema: its examples, and a test over drawn prompts.

A test that fails is reported with the smallest prompt: fewest modules, then shortest XML. Hypothesis may stop at a
local minimum. So plain prompts are also tried in order of size. Their arguments are empty, short, full or as declared,
at most two of them not the plainest, and their messages are the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import combinations, groupby, product

from hypothesis import Phase, given, settings

from promptcache.diagnostics import InvalidValue, LanguageError, PromptError
from promptcache.language import CheckedParameter, Example, Role, example_prompt
from promptcache.layout import fill_tokens
from promptcache.testing.cases import subject_prompts
from promptcache.testing.cover import plain_case
from promptcache.testing.prompt_xml import PromptChoice, first_members, write_prompt
from promptcache.testing.selection import list_selections
from promptcache.testing.subject import PromptCase, SchemaSource, Subject
from promptcache.testing.texts import Key, Said, fits, plain_argument

DEFAULT_EXAMPLES = 100
MAX_TRIED = 3000
_MAX_CHANGED = 2
_SAID: Sequence[Sequence[Said]] = (
    (),
    (Said(text="a"),),
    *((Said(role=role.value, text=text),) for role in Role for text in ("", "a")),
)


def check_prompts(
    source: SchemaSource | Subject,
    check: Callable[[PromptCase], None],
    *,
    max_examples: int = DEFAULT_EXAMPLES,
    max_tried: int = MAX_TRIED,
) -> None:
    """Check a test over drawn prompts of a schema, the same ones every time.

    Args:
        source: A path, XML text, or a schema.
        check: The test; it raises `AssertionError` for a prompt that breaks it.
        max_examples: The number of prompts to draw.
        max_tried: The largest number of smaller prompts that are tried after a failure.

    Raises:
        AssertionError: that of `check` for the smallest prompt found, which is a note of the error.
    """
    subject = source if isinstance(source, Subject) else Subject(source)
    found: list[PromptCase] = []

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),  # a profile may have other ones
    )
    @given(case=subject_prompts(subject))
    def run(case: PromptCase) -> None:
        if _breaks(check, case):
            found.append(case)  # the last one is the simplest that Hypothesis finds
        check(case)

    try:
        run()
    except AssertionError as error:
        smallest = smallest_failing(subject, partial(_breaks, check), below=found[-1], max_tried=max_tried)
        if smallest is None:
            raise
        _raise_for(check, smallest, error)


def _breaks(check: Callable[[PromptCase], None], case: PromptCase) -> bool:
    try:
        check(case)
    except AssertionError:
        return True
    return False


def _raise_for(check: Callable[[PromptCase], None], case: PromptCase, found: AssertionError) -> None:
    """Raise the error of a test for the smallest prompt."""
    try:
        check(case)
    except AssertionError as error:
        error.add_note(case.report)
        raise error from found


def tested_examples(subject: Subject) -> Iterator[tuple[str, Example]]:
    """Yield the examples that state an expectation, each with its name or its number among all."""
    for number, example in enumerate(subject.schema.examples, 1):
        if example.has_expectation:
            yield example.name or f"number {number}", example


def check_example(subject: Subject, example: Example) -> None:
    """Plan an example that is valid.

    Raises:
        LanguageError: an argument is longer than its slot, or there is nothing to prefill; at its place in the schema.
    """
    if example.valid is not False:
        subject.plan(example_prompt(example))


def check_combination(subject: Subject, modules: Collection[str]) -> None:
    """Plan the plainest prompt that uses `modules`, which the notes of an error name.

    Raises:
        LanguageError: an argument or default does not fit, or a module cannot be planned.
        InvalidValue: no text was found for the slot of a required parameter.
    """
    try:
        plain_case(subject, modules)
    except (LanguageError, InvalidValue) as error:
        error.add_note(f"modules: {', '.join(sorted(modules)) or 'none'}")
        raise


def size_of(case: PromptCase) -> tuple[int, int]:
    """Return the size of a prompt: the number of modules, then the bytes of XML."""
    return len(case.selection.modules), len(case.xml.encode())


def smallest_failing(
    subject: Subject,
    fails: Callable[[PromptCase], bool],
    *,
    below: PromptCase | None = None,
    max_tried: int = MAX_TRIED,
) -> PromptCase | None:
    """Return the smallest plain prompt that fails, if one is found that is smaller than the one given.

    Args:
        subject: The schema.
        fails: Whether a prompt shows the fault.
        below: A prompt that does.
        max_tried: The largest number of prompts to try.
    """
    limit = size_of(below) if below else None
    for number, (size, xml) in enumerate(_small_prompts(subject)):
        if number == max_tried or (limit is not None and size >= limit):
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


def _choices(subject: Subject, modules: frozenset[str]) -> Iterator[PromptChoice]:
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
                members = first_members(subject.schema, modules)
                yield PromptChoice(modules=modules, arguments=arguments, messages=said, members=members)


def _options(parameter: CheckedParameter, subject: Subject) -> list[str | None]:
    """Return what a slot may get, the plainest first."""
    plain = plain_argument(parameter, subject.tokenizer) if parameter.required else None
    full = fill_tokens(parameter.lead, "x", parameter.num_positions, subject.tokenizer).removeprefix(parameter.lead)
    known = (parameter.default, parameter.placeholder, *parameter.choices)
    fitting = (
        text for text in ("", "a", full, *known) if text is not None and fits(parameter, text, subject.tokenizer)
    )
    return list(dict.fromkeys((plain, *fitting)))
