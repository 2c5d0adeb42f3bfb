"""Types of the checked schema and of a prompt's selection, for use by other rooms, and the text of a selection.

In a checked schema all text is final (whitespace and separators applied). Options are inherited, paths start at
the root, and documentation is removed. `check_schema` and `resolve_prompt` build these types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from promptcache.diagnostics import Diagnostic, InvalidValue, Short, Span
from promptcache.language.rules.rules import Rules
from promptcache.language.schema import Schema
from promptcache.language.syntax import nodes
from promptcache.language.syntax.nodes import join_path
from promptcache.language.syntax.repair import Repair

_DECODER = json.JSONDecoder()
_DEFINITION = re.compile(r'\{\s*"type"\s*:\s*"function"')

CHAT_SCHEMA = "no schema"
"""Name of the empty schema of prompts without one, such as chat messages. No schema of a user has a name with a space.
"""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FinalText(Short):
    """Non-empty text in its final form for the tokenizer."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedParameter(nodes.Parameter):
    """Slot with the space before it.

    Attributes:
        lead: " " if the schema has a space directly before the slot, else "". The space belongs to the content of the
            slot, because tokenizers join a space with the word after it.
    """

    lead: str

    @property
    def num_positions(self) -> int:
        """Positions of the slot: `length`, and one more for the space."""
        return self.length + len(self.lead)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedTurn(Short):
    """Chat turn. `open` marks the one top-level user turn that ends with the footer of the request."""

    role: nodes.Role
    children: tuple[CheckedItem, ...]
    span: Span
    open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedCollection(Short):
    """Collection: a module without content of its own, in which a prompt names members in any order.

    Attributes:
        minimum, maximum: Limits of the number of members in a prompt; None means no limit.
        lead: Text at the beginning of each member.
        members: The members that the schema declares, by name. An engine can have others.
    """

    minimum: int
    maximum: int | None
    lead: str
    members: Mapping[str, nodes.Member]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedModule(Short):
    """Module; `path` ("cities/miami") is its identity, `parent` the path of the enclosing module ("" is the root).

    `node` is its declaration. `children`, `cache` and `context` are final: inherited where it does not state them.
    A `collection` has no children: its members are modules of a prompt (`Selection.module`).
    """

    path: str
    parent: str
    node: nodes.Module = field(repr=False, hash=False)
    children: tuple[CheckedItem, ...]
    cache: bool
    context: nodes.Context
    collection: CheckedCollection | None = None

    @property
    def span(self) -> Span:
        return self.node.span

    @property
    def required(self) -> bool:
        """Return whether a prompt must name the module whenever its parent is present."""
        return self.node.required

    def member(self, name: str, member: nodes.Member) -> CheckedModule:
        """Return a member of this collection as a module."""
        assert self.collection is not None, "only collections have members"
        text = FinalText(text=self.collection.lead + member.text, span=member.span)
        node = nodes.Module(name=name, children=(), span=member.span)
        path = join_path(self.path, name)
        return replace(self, path=path, parent=self.path, node=node, children=(text,), collection=None)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedUnion(Short):
    """Alternatives with one start position; `default` is the path of the member for prompts that name none."""

    name: str | None
    parent: str
    members: tuple[CheckedModule, ...]
    span: Span
    required: bool
    default: str | None


CheckedItem: TypeAlias = FinalText | CheckedParameter | CheckedTurn | CheckedModule | CheckedUnion


def walk_checked(items: Iterable[CheckedItem]) -> Iterator[CheckedItem]:
    """Yield every item, in document order."""
    for item in items:
        yield item
        if isinstance(item, CheckedModule | CheckedTurn):
            yield from walk_checked(item.children)
        elif isinstance(item, CheckedUnion):
            yield from walk_checked(item.members)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedScaffold(Short):
    """Modules that are encoded together.

    `members` are paths in declared order. `guaranteed` are all modules that are present if every member is
    present, members included.
    """

    name: str
    members: tuple[str, ...]
    guaranteed: frozenset[str]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedSchema(Short):
    """Schema with at least one valid prompt.

    Attributes:
        children: The document's items, in order.
        modules: Every module by path, in document order.
        parameters: For each module path ("" too), its parameters by name.
        guaranteed: For each module path, the modules present in every valid prompt that has it, itself included;
            for "", the modules present in every valid prompt. Closed: a guaranteed module's set is part of it.
        scaffolds: In the order in which they are tried: that of the document.
        has_turns: Whether the schema contains a chat turn.
        outside_turns: The first text outside of turns of each module that has one, by path ("" too).
        open_separator: Text inserted before bare text that continues the open turn, or a schema without turns.
        repair: The setting `repair` of the schema's requests, or None if the schema does not state one.
        positions: Where the schema's requests have cached text, or None if the schema does not state it.
        answer_format: The format of answers to prompts that state none, or None if the schema does not state it.
        warnings: Problems that do not prevent the use of the schema, for example dead modules.
        source: The declaration that was checked.
    """

    name: str
    version: str | None
    children: tuple[CheckedItem, ...]
    modules: Mapping[str, CheckedModule]
    parameters: Mapping[str, Mapping[str, CheckedParameter]]
    guaranteed: Mapping[str, frozenset[str]]
    scaffolds: tuple[CheckedScaffold, ...]
    has_turns: bool
    outside_turns: Mapping[str, Span]
    open_separator: str
    rules: Rules
    repair: Repair | None
    positions: nodes.Placement | None
    answer_format: nodes.AnswerFormat | None
    warnings: tuple[Diagnostic, ...]
    source: Schema = field(repr=False)

    @property
    def is_chat(self) -> bool:
        """Whether it is the empty schema of prompts without one: the chat template writes all of them."""
        return self.name == CHAT_SCHEMA

    @property
    def has_open_turn(self) -> bool:
        """Whether the schema ends with a turn that the prompt continues and closes."""
        return any(isinstance(item, CheckedTurn) and item.open for item in self.children)

    @property
    def examples(self) -> tuple[nodes.Example, ...]:
        """Examples of the author, in document order; `example_prompt` parses one."""
        return self.source.examples


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FilledSlot(Short):
    """Argument of a prompt: the module and parameter, the exact text, and its span."""

    module: str
    parameter: str
    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Selection(Short):
    """Checked prompt: the complete set of its modules, with arguments and messages.

    Attributes:
        modules: Paths of all modules present – named, their ancestors, union defaults – in document order. Members of a
            collection come directly behind it, in the order of the prompt.
        arguments: The given arguments, in the order of `modules`, then of the parameters.
        messages: The prompt's own turns in order. A bare text (`role` None) comes first; turns follow it only if it
            continues the open turn of the schema.
        span: The prompt document.
        members: The members of collections among the modules, by path.
        answer_format: The format of the answer: that of the prompt, else that of the schema.
    """

    schema: CheckedSchema
    modules: tuple[str, ...]
    arguments: tuple[FilledSlot, ...]
    messages: tuple[nodes.Message, ...]
    span: Span
    members: Mapping[str, nodes.Member] = field(default_factory=dict)
    answer_format: nodes.AnswerFormat | None = None

    def module(self, path: str) -> CheckedModule:
        """Return a module of the prompt: one of the schema, or a member of a collection."""
        member = self.members.get(path)
        if member is None:
            return self.schema.modules[path]
        parent, _, name = path.rpartition("/")
        return self.schema.modules[parent].member(name, member)

    def children(self, module: CheckedModule) -> Sequence[CheckedItem]:
        """Return the items of a module in this prompt: those of a collection are the members that the prompt names."""
        if module.collection is None:
            return module.children
        return [self.module(path) for path in self.members if path.rpartition("/")[0] == module.path]


_Piece: TypeAlias = FinalText | CheckedParameter | CheckedTurn


def text_of(selection: Selection) -> str:
    """Return the text of a prompt: its modules with their arguments, then its own text; each turn starts a new line."""
    schema = selection.schema
    goes_on = schema.has_open_turn or not schema.has_turns
    found = [text_within(selection, schema.children)]
    for message in selection.messages:
        found += [schema.open_separator if message.role is None and goes_on else "\n", message.text]
    return "".join(found)


def text_within(selection: Selection, items: Iterable[CheckedItem], owner: str = "") -> str:
    """Return the text of those items of a module that are in a prompt; each turn in them begins and ends a line."""
    filled = {(slot.module, slot.parameter): slot.text for slot in selection.arguments}
    found = []
    for path, piece in _pieces(selection, items, owner):
        match piece:
            case FinalText(text=text):
                found.append(text)
            case CheckedTurn():
                found.append("\n")
            case parameter:
                found.append(parameter.lead + filled.get((path, parameter.name), parameter.default or ""))
    return "".join(found)


def tool_definitions(selection: Selection) -> list[Any]:
    """Return the tools whose definitions in the form of OpenAI are in the cached text of a prompt, as JSON."""
    from promptcache.structured import read_tools  # brings the library of grammars, which few commands need

    found: dict[str, Any] = {}
    for _, piece in _pieces(selection, selection.schema.children):
        if isinstance(piece, FinalText):
            at = 0
            with suppress(ValueError, RecursionError):  # raised by JSON that is not complete
                while (begin := _DEFINITION.search(piece.text, at)) is not None:
                    value, at = _DECODER.raw_decode(piece.text, begin.start())
                    with suppress(InvalidValue):
                        found |= {each.name: each for each in read_tools([value])}
    return [each.definition for each in found.values()]


def _pieces(selection: Selection, items: Iterable[CheckedItem], owner: str = "") -> Iterator[tuple[str, _Piece]]:
    """Yield the texts and slots of items in a prompt, each with the module around it.

    Turns come at their start and, unless they are open, at their end.
    """
    present = frozenset(selection.modules)

    def walk(items: Iterable[CheckedItem], owner: str) -> Iterator[tuple[str, _Piece]]:
        for item in items:
            match item:
                case CheckedModule():
                    if item.path in present:
                        yield from walk(selection.children(item), item.path)
                case CheckedUnion():
                    yield from walk(item.members, owner)
                case CheckedTurn():
                    yield owner, item
                    yield from walk(item.children, owner)
                    if not item.open:
                        yield owner, item
                case piece:
                    yield owner, piece

    return walk(items, owner)
