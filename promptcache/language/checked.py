"""The checked schema and the selection of a prompt: what other rooms work with.

In a checked schema all text is final (whitespace and separators applied), options are inherited, paths start at the
root, and documentation is gone. `check_schema` and `resolve_prompt` build these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from promptcache.diagnostics import Diagnostic, Short, Span
from promptcache.language.prompt import Message
from promptcache.language.rules.rules import Rules
from promptcache.language.schema import Context, Example, Parameter, Role, Schema


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FinalText(Short):
    """Text as it will be tokenized; never empty."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedTurn(Short):
    """A chat turn. `open` marks the one top-level user turn whose footer belongs to the request."""

    role: Role
    children: tuple[CheckedItem, ...]
    span: Span
    open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedModule(Short):
    """A module; `path` ("cities/miami") is its identity, `parent` the path of the module around it ("" is the root)."""

    path: str
    parent: str
    children: tuple[CheckedItem, ...]
    span: Span
    required: bool
    cache: bool
    context: Context
    reserve: int | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedUnion(Short):
    """Alternatives that share one start position; `default` is the path of the member taken when none is named."""

    name: str | None
    parent: str
    members: tuple[CheckedModule, ...]
    span: Span
    required: bool
    default: str | None


CheckedItem: TypeAlias = FinalText | Parameter | CheckedTurn | CheckedModule | CheckedUnion


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedScaffold(Short):
    """Modules encoded together.

    `members` are paths in declared order; `guaranteed` are all modules present whenever every member is (members
    included).
    """

    name: str
    members: tuple[str, ...]
    guaranteed: frozenset[str]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedSchema(Short):
    """A schema that at least one prompt can be written against.

    Attributes:
        children: The document's items, in order.
        modules: Every module by path, in document order.
        parameters: For each module path ("" too), its parameters by name.
        guaranteed: For each module path, the modules present in every valid prompt that has it, itself included;
            for "", the modules present in every valid prompt. Closed: a guaranteed module's set is part of it.
        scaffolds: In declared order.
        has_turns: Whether any chat turn stands anywhere in the schema.
        open_separator: What stands before bare text that continues the open turn ("" when there is no open turn).
        warnings: What the author should know, although the schema can be used (dead modules, for one).
        source: The declaration that this was made from.
    """

    name: str
    version: str | None
    children: tuple[CheckedItem, ...]
    modules: Mapping[str, CheckedModule]
    parameters: Mapping[str, Mapping[str, Parameter]]
    guaranteed: Mapping[str, frozenset[str]]
    scaffolds: tuple[CheckedScaffold, ...]
    has_turns: bool
    open_separator: str
    rules: Rules
    warnings: tuple[Diagnostic, ...]
    source: Schema = field(repr=False)

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples that the author gives, in document order; `example_prompt` reads one."""
        return self.source.examples


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FilledSlot(Short):
    """An argument that a prompt gives: which parameter of which module, the exact text, and where it stands."""

    module: str
    parameter: str
    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Selection(Short):
    """A prompt after its checks: the complete set of modules it uses, with what fills and follows them.

    Attributes:
        modules: Paths of all modules present – named, their ancestors, union defaults – in document order.
        arguments: The arguments given, in the order of `modules`, then of the parameters.
        messages: The prompt's own turns in order, or one bare text (`role` None) at most.
        span: The prompt document.
    """

    schema: CheckedSchema
    modules: tuple[str, ...]
    arguments: tuple[FilledSlot, ...]
    messages: tuple[Message, ...]
    span: Span
