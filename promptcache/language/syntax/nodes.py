"""Nodes of a schema: frozen dataclasses, each with a span.

`parse_schema` creates nodes from text, and Python callers create them directly. Creating a node does not check it;
`check_schema` checks the whole schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from promptcache.diagnostics import Short, Span

Places: TypeAlias = tuple[tuple[str, tuple[Span, ...]], ...]
"""Spans of attribute values: the name of each attribute with one span, or with one span for each word of a list."""

IN_PYTHON = Span("<python>", 0, 0, 0, 0)
"""Span of the nodes that are created in Python."""


class Role(StrEnum):
    """Role of the speaker in a chat turn."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class Placement(StrEnum):
    """Where cached text stands in a request (docs/layout.md, "Closed and fixed positions").

    `CLOSED`: directly behind the text before it. `FIXED`: at the positions at which it was encoded.
    """

    CLOSED = "closed"
    FIXED = "fixed"


class Context(StrEnum):
    """Context that a module's runs attend to while they are encoded (docs/layout.md, "What each encoding sees").

    `GUARANTEED`: the runs before it that are present whenever it is. `PREVIOUS`: these, and the module before it in the
    prompt. `OWN`: its own runs only.
    """

    PREVIOUS = "previous"
    GUARANTEED = "guaranteed"
    OWN = "own"


class Whitespace(StrEnum):
    """Whitespace mode of a text block (docs/language.md, "Whitespace")."""

    DEDENT = "dedent"
    PRESERVE = "preserve"
    COLLAPSE = "collapse"
    COMPACT = "compact"


class ParameterType(StrEnum):
    """Type of the text that a parameter accepts."""

    TEXT = "text"
    LINE = "line"
    INT = "int"
    NUMBER = "number"
    CHOICE = "choice"


def _take_texts(node: object, **choices: type[StrEnum]) -> None:
    """Replace the text of a choice, as Python code may give it, by its member. Other values are faults of a check."""
    for name, kind in choices.items():
        value = getattr(node, name)
        if type(value) is str and value in [*kind]:
            object.__setattr__(node, name, kind(value))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Text(Short):
    """Text that is present if its parent is present.

    `exact` text is used unchanged: the `text` element, a `src` file, and text from Python. The whitespace rules of the
    parent apply to all other text.
    """

    text: str
    span: Span
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Parameter(Short):
    """Slot of `length` positions that a prompt fills. `message` explains the `pattern` to authors of prompts.

    If `cut_placeholder` is true, a placeholder that is longer than the slot is truncated. The paper's dialect
    (`scaffold="…"`) needs this.
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

    def __post_init__(self) -> None:
        _take_texts(self, type=ParameterType)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Doc(Short):
    """Documentation for readers of the schema. It is never tokenized."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnswerFormat(Short):
    """Format of answers: a type as parameters have it, or a JSON schema. It changes no token of a prompt.

    Attributes:
        src: The file of the JSON schema, as the document names it; `schema` is its text.
    """

    type: ParameterType = ParameterType.TEXT
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    src: str | None = None
    schema: str | None = None
    span: Span = IN_PYTHON
    places: Places = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        _take_texts(self, type=ParameterType)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Turn(Short):
    """Chat turn. Its header and footer come from the model's chat template."""

    role: Role
    children: tuple[Item, ...]
    span: Span

    def __post_init__(self) -> None:
        _take_texts(self, role=Role)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Module(Short):
    """Reusable text with a name. An inherited option that is None has the value of the parent.

    `requires`, `excludes` and `after` are module paths as written. A path is relative to the parent of this module, or
    starts at the root if it has a leading slash.
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

    def __post_init__(self) -> None:
        _take_texts(self, context=Context, whitespace=Whitespace)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Union(Short):
    """Modules that share one start position.

    A prompt uses at most one member. It uses exactly one if `required` is true or if there is a `default`.
    """

    children: tuple[Module | Doc, ...]
    span: Span
    name: str | None = None
    required: bool = False
    default: str | None = None
    places: Places = field(default=(), repr=False, compare=False)

    @property
    def members(self) -> tuple[Module, ...]:
        """Return the members, in document order."""
        return tuple(child for child in self.children if isinstance(child, Module))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Member(Short):
    """Member of a collection, with its final text."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Collection(Short):
    """Modules that a prompt uses in any order, from `minimum` to `maximum` of them; None means no limit.

    Members hold only text. Further members can be added while an engine runs. An option that is None has the value of
    the parent.

    Attributes:
        src: The file of further members, as the document names it; `listed` has these by name.
    """

    name: str
    children: tuple[Module | Doc, ...]
    span: Span
    minimum: int = 0
    maximum: int | None = None
    src: str | None = None
    context: Context = Context.GUARANTEED
    whitespace: Whitespace | None = None
    separator: str | None = None
    listed: Mapping[str, Member] = field(default_factory=dict, hash=False)
    places: Places = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        _take_texts(self, context=Context, whitespace=Whitespace)

    @property
    def members(self) -> tuple[Module, ...]:
        """Return the members that the document itself declares, in document order."""
        return tuple(child for child in self.children if isinstance(child, Module))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scaffold(Short):
    """Modules that are also encoded together and attend to each other.

    Relative paths start at the module around the scaffold.
    """

    modules: tuple[str, ...]
    span: Span
    name: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Require(Short):
    """Rule that `condition` implies `consequence`. Both are conditions over module paths from the root."""

    condition: str
    consequence: str
    span: Span = IN_PYTHON
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Exclude(Short):
    """Rule that at most one of `modules` is present."""

    modules: tuple[str, ...]
    span: Span = IN_PYTHON
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Choose(Short):
    """Rule that from `minimum` to `maximum` of `modules` are present; None means no limit."""

    modules: tuple[str, ...]
    span: Span = IN_PYTHON
    minimum: int | None = None
    maximum: int | None = None
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Assert(Short):
    """Rule that the condition `test` is true."""

    test: str
    span: Span = IN_PYTHON
    message: str | None = None
    places: Places = field(default=(), repr=False, compare=False)


Combination: TypeAlias = Require | Exclude | Choose | Assert


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RuleList(Short):
    """Rules over modules anywhere in the schema. A prompt that breaks a rule is reported with the rule's `message`."""

    children: tuple[Combination | Doc, ...]
    span: Span

    @property
    def combinations(self) -> tuple[Combination, ...]:
        """Return the rules, in document order."""
        return tuple(child for child in self.children if not isinstance(child, Doc))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Example(Short):
    """Example prompt: its document, whether it is valid, text that it contains, and an answer of its format.

    None means no expectation.
    """

    prompt: str
    prompt_span: Span = field(repr=False, compare=False)
    span: Span
    name: str | None = None
    valid: bool | None = None
    contains: str | None = None
    answer: str | None = None
    places: Places = field(default=(), repr=False, compare=False)

    @property
    def has_expectation(self) -> bool:
        """Return whether the example states anything that can be checked."""
        return any(each is not None for each in (self.valid, self.contains, self.answer))


Item: TypeAlias = (
    Text | Parameter | Doc | AnswerFormat | Turn | Module | Union | Collection | Scaffold | RuleList | Example
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchemaDocument(Short):
    """Schema document as declared, with the included items in place of each `include`."""

    name: str = field(kw_only=False)
    children: tuple[Item, ...] = ()
    span: Span = IN_PYTHON
    version: str | None = None
    context: Context = Context.PREVIOUS
    whitespace: Whitespace = Whitespace.DEDENT
    separator: str = "\n"
    repair: str | None = None
    positions: Placement | None = None
    places: Places = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        _take_texts(self, context=Context, whitespace=Whitespace, positions=Placement)

    @property
    def examples(self) -> tuple[Example, ...]:
        """Return the examples, in document order."""
        return tuple(child for child in self.children if isinstance(child, Example))


def walk(items: tuple[Item, ...], parent: str = "") -> Iterator[tuple[str, Item]]:
    """Yield all items at any depth, in document order, with the path of the module around each ("" is the root)."""
    for item in items:
        yield parent, item
        if isinstance(item, Module | Collection):
            yield from walk(item.children, join_path(parent, item.name))
        elif isinstance(item, Turn | Union):
            yield from walk(item.children, parent)


def join_path(parent: str, name: str) -> str:
    """Return the path of module `name` inside module `parent` ("" is the root)."""
    return f"{parent}/{name}" if parent else name


def place(
    item: SchemaDocument | Module | Union | Collection | Parameter | Scaffold | Combination | Example | AnswerFormat,
    attribute: str,
    index: int = 0,
) -> Span:
    """Return the span of word `index` of an attribute's value, or the span of the item if that span is not known."""
    spans = next((spans for name, spans in item.places if name == attribute), ())
    return spans[index] if index < len(spans) else item.span
