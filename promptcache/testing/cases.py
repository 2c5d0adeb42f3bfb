"""Hypothesis strategies for the prompts of one schema, and for their parts.

A drawn prompt is a `PromptCase`: its XML, and everything that is known of it before a model runs. Prompts are valid by
construction; they shrink to the smallest selection with the shortest texts.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from promptcache.diagnostics import TEXT, TEXTS, InvalidValue, Kind, Short, instance
from promptcache.language import NOT_IN_XML, CheckedSchema
from promptcache.testing.prompt_xml import (
    PromptChoice,
    PromptTree,
    check_members,
    draw_members,
    has_tokens,
    keep_rules,
    write_prompt,
)
from promptcache.testing.selection import distinct_selections, selections_with
from promptcache.testing.subject import PromptCase, SchemaSource, Subject, read_schema
from promptcache.testing.texts import MESSAGES, SOME_MESSAGES, Key, Said, Slots, draw_arguments, slots
from promptcache.tokenizer import Tokenizer

_T = TypeVar("_T")

Arguments: TypeAlias = Mapping[str, str | SearchStrategy[str] | None]
"""By "module/parameter" (the root's own: "parameter"): a text, a strategy for one, or None for no argument."""

Messages: TypeAlias = SearchStrategy[Sequence[Said]]

_SELECT = Kind(
    "a list of module paths, or a strategy", lambda value: isinstance(value, SearchStrategy) or TEXTS.takes(value)
)
_ARGS = instance("a mapping from parameters to texts", Mapping)
_XML_TEXT = Kind("text that XML can represent", lambda value: isinstance(value, str) and not NOT_IN_XML.search(value))
_TEXT = Kind(
    "text that XML can represent, or a strategy,",
    lambda value: isinstance(value, SearchStrategy) or _XML_TEXT.takes(value),
)


def prompts(
    schema: SchemaSource,
    select: Collection[str] | SearchStrategy[frozenset[str]] = (),
    args: Arguments | None = None,
    text: str | SearchStrategy[str] | None = None,
    tokenizer: Tokenizer | None = None,
) -> SearchStrategy[PromptCase]:
    """Draw valid prompts of a schema; the smallest selection with the shortest text is the simplest.

    Args:
        schema: A path, XML text, or a schema.
        select: Module paths that every prompt uses, or a strategy for whole valid selections.
        args: Arguments of certain slots; those of all others are drawn.
        text: Bare text that follows the modules; None draws nothing, bare text or turns. Prompts that are empty with
            this text are not drawn.
        tokenizer: Measures slots; None takes the demo model's.
    """
    return subject_prompts(Subject(schema, tokenizer), select, args, text)


def subject_prompts(
    subject: Subject,
    select: Collection[str] | SearchStrategy[frozenset[str]] = (),
    args: Arguments | None = None,
    text: str | SearchStrategy[str] | None = None,
) -> SearchStrategy[PromptCase]:
    """Draw valid prompts of a subject; see `prompts`."""
    _SELECT.check("select", select, InvalidValue)
    if isinstance(select, SearchStrategy):
        chosen = select.map(lambda modules: _known(subject.schema, modules))
    else:
        chosen = selections_with(subject.schema, frozenset(select))
    known = {**slots(subject.schema, subject.tokenizer), **_given(subject, args or {})}
    (_TEXT | None).check("text", text, InvalidValue)
    said = None if text is None else _drawn("text", text, _XML_TEXT).map(lambda one: (Said(text=one, exact=True),))
    subject.lay_out_now()
    return prompt_trees(subject.schema, chosen, known, said).map(lambda tree: _case(tree, subject))


def pairs(schema: SchemaSource, tokenizer: Tokenizer | None = None) -> SearchStrategy[tuple[PromptCase, PromptCase]]:
    """Draw two prompts that differ in one module, or in as few as the rules allow, and are otherwise the same."""
    subject = Subject(schema, tokenizer)
    subject.lay_out_now()
    trees = prompt_tree_pairs(subject.schema, slots(subject.schema, subject.tokenizer))
    return trees.map(lambda pair: (_case(pair[0], subject), _case(pair[1], subject)))


def selections(schema: SchemaSource) -> SearchStrategy[frozenset[str]]:
    """Draw the modules of a valid prompt, as paths."""
    return selections_with(read_schema(schema), frozenset())


def arguments(
    schema: SchemaSource, modules: Collection[str], tokenizer: Tokenizer | None = None
) -> SearchStrategy[dict[Key, str]]:
    """Draw arguments for the slots of `modules` and of the root: all required ones, any of the others.

    Returns:
        Texts by module path and parameter name, never longer than the slot and often just as long.
    """
    subject = Subject(schema, tokenizer)
    return _arguments(slots(subject.schema, subject.tokenizer), _known(subject.schema, modules))


def _known(schema: CheckedSchema, modules: Collection[str]) -> frozenset[str]:
    if unknown := sorted({*modules} - schema.modules.keys()):
        raise InvalidValue(f"schema {schema.name!r} has no module {unknown[0]!r}")
    return frozenset(modules)


def prompt_trees(
    schema: CheckedSchema, chosen: SearchStrategy[frozenset[str]], known: Slots, messages: Messages | None = None
) -> SearchStrategy[PromptTree]:
    """Draw valid prompts as trees; `messages` of None are drawn so that no prompt is empty."""
    chosen_once = chosen.map(lambda modules: (modules,))
    source = _Source(schema=schema, selections=chosen_once, slots=known, messages=messages)
    return _prompt_trees(source).map(operator.itemgetter(0))


def prompt_tree_pairs(schema: CheckedSchema, known: Slots) -> SearchStrategy[tuple[PromptTree, ...]]:
    """Draw two valid prompts, with different modules if there are any; shared slots have the same arguments."""
    return _prompt_trees(_Source(schema=schema, selections=distinct_selections(schema), slots=known, messages=None))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Source(Short):
    """The source of drawn prompts of one schema; its short repr keeps Hypothesis' messages readable."""

    schema: CheckedSchema
    selections: SearchStrategy[tuple[frozenset[str], ...]]
    slots: Slots
    messages: Messages | None

    def __repr__(self) -> str:
        return f"schema {self.schema.name!r}"


@st.composite
def _prompt_trees(draw: DrawFn, source: _Source) -> tuple[PromptTree, ...]:
    """Draw one prompt for each of the drawn selections, with the same arguments and messages."""
    selected = draw(source.selections)
    check_members(source.schema, frozenset().union(*selected))
    filled = draw_arguments(draw, source.slots, frozenset().union(*selected))
    members = draw_members(draw, source.schema)
    parts = []
    for modules in selected:
        given = {key: text for key, text in filled.items() if not key[0] or key[0] in modules}
        parts.append((modules, given, {path: members[path] for path in members if path in modules}))
    assume(all(keep_rules(source.schema, modules, own) for modules, _, own in parts))
    never_empty = all(has_tokens(source.schema.children, *part) for part in parts)
    drawn = MESSAGES if never_empty else SOME_MESSAGES
    said = draw(drawn if source.messages is None else source.messages)
    assume(never_empty or any(message.role or message.text for message in said))
    return tuple(
        write_prompt(draw, source.schema, PromptChoice(modules=modules, arguments=given, messages=said, members=own))
        for modules, given, own in parts
    )


@st.composite
def _arguments(draw: DrawFn, known: Slots, modules: frozenset[str]) -> dict[Key, str]:
    return draw_arguments(draw, known, modules)


class _Report:
    """The report of a case. It is made when Hypothesis shows it, because that takes time."""

    def __init__(self, case: PromptCase) -> None:
        self._case = case

    def __repr__(self) -> str:
        return self._case.report


def _case(tree: PromptTree, subject: Subject) -> PromptCase:
    case = subject.case(tree.document())
    note(_Report(case))
    return case


def _given(subject: Subject, args: Arguments) -> dict[Key, SearchStrategy[str] | SearchStrategy[str | None]]:
    """Return strategies for the slots whose arguments the caller gives."""
    found: dict[Key, SearchStrategy[str] | SearchStrategy[str | None]] = {}
    _ARGS.check("args", args, InvalidValue)
    for path, wanted in args.items():
        TEXT.check("the name of an argument", path, InvalidValue)
        (_TEXT | None).check(f"args[{path!r}]", wanted, InvalidValue)
        owner, _, name = path.rpartition("/")
        if name not in subject.schema.parameters.get(owner, {}):
            raise ValueError(f"{subject!r} has no parameter {path!r}")
        found[owner, name] = _drawn(f"args[{path!r}]", wanted, _XML_TEXT | None)
    return found


def _drawn(name: str, given: SearchStrategy[_T] | _T, kind: Kind) -> SearchStrategy[_T]:
    """Return a strategy for a value or a caller's strategy, whose values are checked as they are drawn."""
    if not isinstance(given, SearchStrategy):
        return st.just(given)

    def checked(value: _T) -> _T:
        kind.check(f"a value of {name}", value, InvalidValue)
        return value

    return given.map(checked)
