"""The nodes of a schema: frozen dataclasses, each with a span.

`parse_schema` reads them and Python callers build them. A node says nothing about whether the schema makes sense.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from promptcache.diagnostics import Short, Span

Places: TypeAlias = tuple[tuple[str, tuple[Span, ...]], ...]
"""Where values of attributes stand: each attribute's name with a span, or one for each word of a list of paths."""

IN_PYTHON = Span("<python>", 0, 0, 0, 0)
"""The place of what was built in Python."""


class Role(StrEnum):
    """Who speaks in a chat turn."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class Context(StrEnum):
    """What a module's runs attend to while they are encoded (docs/layout.md, "What each encoding sees")."""

    GUARANTEED = "guaranteed"
    OWN = "own"


class Whitespace(StrEnum):
    """How a text block becomes text (docs/language.md, "Whitespace")."""

    DEDENT = "dedent"
    PRESERVE = "preserve"
    COLLAPSE = "collapse"
    COMPACT = "compact"


class ParameterType(StrEnum):
    """What a parameter takes."""

    TEXT = "text"
    LINE = "line"
    INT = "int"
    NUMBER = "number"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Text(Short):
    """Text that is always there when its parent is.

    `exact` text (the `text` element, a `src` file, text given in Python) is taken as it is; other text still has to
    pass the whitespace rules of its parent.
    """

    text: str
    span: Span
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Parameter(Short):
    """A slot of `length` positions that a prompt fills; `message` explains the `pattern` to authors of prompts.

    A placeholder in the paper's dialect (`scaffold="…"`) is cut to the slot where it is longer: `cut_placeholder`.
    """

    name: str
    length: int
    span: Span
    default: str | None = None
    placeholder: str | None = None
    cut_placeholder: bool = False
    required: bool = False
    type: ParameterType = ParameterType.TEXT
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Doc(Short):
    """Documentation for readers of the schema; never tokenized."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Turn(Short):
    """A chat turn; its header and footer come from the model's chat template."""

    role: Role
    children: tuple[Item, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Module(Short):
    """Reusable named text. `None` in an inherited option means: as the parent has it.

    `requires`, `excludes` and `after` are module paths as they were written: relative to the parent module of this one,
    or from the root with a leading slash.
    """

    name: str
    children: tuple[Item, ...]
    span: Span
    required: bool = False
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    cache: bool | None = None
    src: str | None = None
    reserve: int | None = None
    context: Context | None = None
    whitespace: Whitespace | None = None
    separator: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Union(Short):
    """Members share one start position; at most one is used, exactly one if `required` or if there is a `default`."""

    children: tuple[Module | Doc, ...]
    span: Span
    name: str | None = None
    required: bool = False
    default: str | None = None
    places: Places = field(default=(), repr=False, compare=False)

    @property
    def members(self) -> tuple[Module, ...]:
        """The alternatives, in document order."""
        return tuple(child for child in self.children if isinstance(child, Module))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scaffold(Short):
    """Modules that are also encoded together, attending to each other; their paths start from the scaffold's place."""

    modules: tuple[str, ...]
    span: Span
    name: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Require(Short):
    """Whenever `condition` holds, `consequence` does; both are conditions over module paths from the root."""

    condition: str
    consequence: str
    span: Span = IN_PYTHON
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Exclude(Short):
    """At most one of `modules` is present."""

    modules: tuple[str, ...]
    span: Span = IN_PYTHON
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Choose(Short):
    """From `minimum` to `maximum` of `modules` are present; None is no limit."""

    modules: tuple[str, ...]
    span: Span = IN_PYTHON
    minimum: int | None = None
    maximum: int | None = None
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Assert(Short):
    """The condition `test` holds."""

    test: str
    span: Span = IN_PYTHON
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


Combination: TypeAlias = Require | Exclude | Choose | Assert


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RuleList(Short):
    """Rules over modules anywhere in the schema; `message` of a rule is what a prompt that breaks it is told."""

    children: tuple[Combination | Doc, ...]
    span: Span

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """The rules, in document order."""
        return tuple(child for child in self.children if not isinstance(child, Doc))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Example(Short):
    """A prompt for the schema: its document, whether it is valid and which text it contains; None says nothing."""

    prompt: str
    prompt_span: Span = field(repr=False, compare=False)
    span: Span
    name: str | None = None
    valid: bool | None = None
    contains: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


Item: TypeAlias = Text | Parameter | Doc | Turn | Module | Union | Scaffold | RuleList | Example


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchemaDocument(Short):
    """A schema document as it was declared, with everything that it includes in its place."""

    name: str = field(kw_only=False)
    children: tuple[Item, ...] = ()
    span: Span = IN_PYTHON
    version: str | None = None
    context: Context = Context.GUARANTEED
    whitespace: Whitespace = Whitespace.DEDENT
    separator: str = "\n"
    places: Places = field(default=(), repr=False, compare=False)

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples, in document order."""
        return tuple(child for child in self.children if isinstance(child, Example))


def walk(items: tuple[Item, ...], parent: str = "") -> Iterator[tuple[str, Item]]:
    """Yield every item below `items` in document order with the path of the module that holds it ("" is the root)."""
    for item in items:
        yield parent, item
        if isinstance(item, Module):
            yield from walk(item.children, join_path(parent, item.name))
        elif isinstance(item, Turn | Union):
            yield from walk(item.children, parent)


def join_path(parent: str, name: str) -> str:
    """Return the path of module `name` inside module `parent` ("" is the root)."""
    return f"{parent}/{name}" if parent else name


def place(
    item: SchemaDocument | Module | Union | Parameter | Scaffold | Combination | Example, attribute: str, index: int = 0
) -> Span:
    """Return where word `index` of an attribute's value stands, or the item itself where no place is known."""
    spans = next((spans for name, spans in item.places if name == attribute), ())
    return spans[index] if index < len(spans) else item.span
