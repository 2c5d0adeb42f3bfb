"""Nodes of schemas and prompts: frozen dataclasses, each with a span. Their fields declare the attributes.

`parse_schema` creates nodes from text, and Python callers create them directly. Creating a node does not check it;
`check_schema` checks the whole schema. Equal prompts may have other spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, TypeAlias

from promptcache.diagnostics import Diagnostic, Short, Span
from promptcache.language.syntax.attributes import (
    ALTERNATIVES,
    BOOLEAN,
    CONDITION,
    NUMBER,
    NUMBER_OR_ZERO,
    PATHS,
    PATTERN,
    REPAIR_NAME,
    SEPARATOR,
    SOME_PATHS,
    STRING,
    attributes_of,
    choice,
)

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchemaNode(Short):
    """Part of a schema: the span of its start tag or text, and the spans of its attributes."""

    span: Span = IN_PYTHON
    places: Places = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        """Replace the texts of choices, as Python may give them, by their members; a check reports other values."""
        for each in attributes_of(type(self)):
            value = getattr(self, each.field) if each.kind.enum is not None else None
            if type(value) is str and (member := each.kind.read(value)) is not None:
                object.__setattr__(self, each.field, member)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Text(SchemaNode):
    """Text that is present if its parent is present.

    `exact` text is used unchanged: the `text` element, a `src` file, and text from Python. The whitespace rules of the
    parent apply to all other text.
    """

    text: str
    exact: bool = False


_TYPE = choice(ParameterType)("the type of the text; `line` has no line break")
_CHOICES = ALTERNATIVES('for `type="choice"`: the values, separated by `|`')
_PATTERN = PATTERN("a regular expression that must match the whole text")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Parameter(SchemaNode):
    """Slot of `length` positions that a prompt fills. `message` explains the `pattern` to authors of prompts.

    If `cut_placeholder` is true, a placeholder that is longer than the slot is truncated. The paper's dialect
    (`scaffold="…"`) needs this.
    """

    name: Annotated[str, STRING("what prompts call it, see [Names](#names-and-paths)")]
    length: Annotated[int, NUMBER("the number of positions, that is, of tokens")]
    default: Annotated[str | None, STRING("the text of a slot that the prompt does not fill; by default empty")] = None
    placeholder: Annotated[
        str | None,
        STRING("the text in the slot while the module is encoded, by default the `default`. Prompts never contain it"),
    ] = None
    cut_placeholder: Annotated[
        bool,
        STRING("`placeholder` in [the paper's dialect](#the-papers-dialect)", name="scaffold", alias_of="placeholder"),
    ] = False
    required: Annotated[bool, BOOLEAN("`true`: a prompt with this module must fill the slot with text")] = False
    type: Annotated[ParameterType, _TYPE] = ParameterType.TEXT
    choices: Annotated[tuple[str, ...], _CHOICES] = ()
    pattern: Annotated[str | None, _PATTERN] = None
    message: Annotated[str | None, STRING("for a `pattern`: the error message for a text that does not match")] = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Doc(SchemaNode):
    """Documentation for readers of the schema. It is never tokenized."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnswerFormat(SchemaNode):
    """Format of answers: a type as parameters have it, or a JSON schema. It changes no token of a prompt.

    Attributes:
        src: The file of the JSON schema, as the document names it; `schema` is its text.
    """

    type: Annotated[ParameterType, _TYPE] = ParameterType.TEXT
    choices: Annotated[tuple[str, ...], _CHOICES] = ()
    pattern: Annotated[str | None, _PATTERN] = None
    src: Annotated[str | None, STRING("a file with a JSON schema, instead of the other attributes")] = None
    schema: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Turn(SchemaNode):
    """Chat turn. Its header and footer come from the model's chat template."""

    role: Role
    children: tuple[Item, ...]

    def __post_init__(self) -> None:
        """Replace the text of a role by its member."""
        if type(self.role) is str and self.role in [*Role]:
            object.__setattr__(self, "role", Role(self.role))


_SEES = "see [layout.md](layout.md#what-each-encoding-sees)"
_CONTEXT = choice(Context)(f"what modules attend to when they are encoded, {_SEES}", inherited=True)
_WHITESPACE = choice(Whitespace)("how text blocks become text, see [Whitespace](#whitespace)", inherited=True)
_SEPARATOR = SEPARATOR("the text between blocks, by default a newline, see [Separators](#separators)", inherited=True)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Module(SchemaNode):
    """Reusable text with a name. An inherited option that is None has the value of the parent.

    `requires`, `excludes` and `after` are module paths as written. A path is relative to the parent of this module, or
    starts at the root if it has a leading slash.
    """

    name: Annotated[str, STRING("what prompts call it, see [Names](#names-and-paths)", of_members=True)]
    children: tuple[Item, ...]
    required: Annotated[bool, BOOLEAN("`true`: a prompt must name the module whenever its parent is present")] = False
    requires: Annotated[tuple[str, ...], PATHS("paths of modules that must be present with this one")] = ()
    excludes: Annotated[tuple[str, ...], PATHS("paths of modules that must not be present with this one")] = ()
    after: Annotated[tuple[str, ...], PATHS("like `requires`; the other module must also be laid out earlier")] = ()
    cache: Annotated[bool | None, BOOLEAN("`false`: computed in every request, and not stored", inherited=True)] = None
    src: Annotated[
        str | None, STRING("a file with the text, in the folder of the schema or below", of_members=True)
    ] = None
    reserve: Annotated[
        int | None,
        NUMBER("with [fixed positions](layout.md#closed-and-fixed-positions), the least number of its positions"),
    ] = None
    priority: Annotated[
        int | None,
        NUMBER("memory keeps its KV as if it were this many times as dear to encode ([memory](keeping.md#memory))"),
    ] = None
    context: Annotated[Context | None, _CONTEXT] = None
    whitespace: Annotated[Whitespace | None, _WHITESPACE._replace(of_members=True)] = None
    separator: Annotated[str | None, _SEPARATOR] = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Union(SchemaNode):
    """Modules that share one start position.

    A prompt uses at most one member. It uses exactly one if `required` is true or if there is a `default`.
    """

    children: tuple[Module | Doc, ...]
    name: Annotated[str | None, STRING("for readers; not part of a path")] = None
    required: Annotated[bool, BOOLEAN("`true`: a prompt must name one member whenever the parent is present")] = False
    default: Annotated[str | None, STRING("the name of the member of prompts that name none")] = None
    scaffold: Annotated[str | None, STRING("of [the paper's dialect](#the-papers-dialect), without effect")] = None

    @property
    def members(self) -> tuple[Module, ...]:
        return tuple(child for child in self.children if isinstance(child, Module))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Member(Short):
    """Member of a collection, with its final text."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Collection(SchemaNode):
    """Modules that a prompt uses in any order, from `minimum` to `maximum` of them; None means no limit.

    Members hold only text. Further members can be added while an engine runs. An option that is None has the value of
    the parent.

    Attributes:
        src: The file of further members, as the document names it; `listed` has these by name.
    """

    name: Annotated[str, STRING("what prompts call it, and a step of paths")]
    children: tuple[Module | Doc, ...]
    minimum: Annotated[
        int,
        NUMBER_OR_ZERO(
            "the least number of members in a prompt, by default 0; above 0, it must name the collection", name="min"
        ),
    ] = 0
    maximum: Annotated[int | None, NUMBER("the largest number of members in a prompt", name="max")] = None
    src: Annotated[str | None, STRING("a file of further members: JSON lines with `name` and `text`")] = None
    context: Annotated[
        Context, choice(Context)(f"what members attend to when they are encoded, {_SEES}. Not inherited")
    ] = Context.GUARANTEED
    whitespace: Annotated[Whitespace | None, _WHITESPACE] = None
    separator: Annotated[
        str | None, SEPARATOR("text before each member, also before the first one", inherited=True)
    ] = None
    listed: Mapping[str, Member] = field(default_factory=dict, hash=False)

    @property
    def members(self) -> tuple[Module, ...]:
        """Return the members that the document itself declares, in document order."""
        return tuple(child for child in self.children if isinstance(child, Module))

    def as_module(self) -> Module:
        """Return the collection without members as a module: it is required if its minimum is above 0."""
        places = tuple(("required" if name == "min" else name, spans) for name, spans in self.places)
        return Module(name=self.name, children=(), span=self.span, places=places, required=self.minimum > 0)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scaffold(SchemaNode):
    """Modules that are also encoded together and attend to each other.

    Relative paths start at the module around the scaffold.
    """

    name: Annotated[str | None, STRING("by default the names of its modules, joined by `+`")] = None
    modules: Annotated[tuple[str, ...], SOME_PATHS("paths of its modules, from where it stands")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Include(SchemaNode):
    """Place of the modules of another file. Reading replaces it by them."""

    href: Annotated[str, STRING("the file: a schema, or a template of one")]


_CONDITION = CONDITION("a condition: paths, `and`, `or`, `not`, `implies` and parentheses")
_MODULES = SOME_PATHS("paths of modules, from the root")
_MESSAGE = STRING("the error message for a prompt that breaks the rule")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Require(SchemaNode):
    """Rule that `condition` implies `consequence`. Both are conditions over module paths from the root."""

    condition: Annotated[str, _CONDITION._replace(name="if")]
    consequence: Annotated[str, CONDITION("another condition", name="then")]
    message: Annotated[str | None, _MESSAGE] = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Exclude(SchemaNode):
    """Rule that at most one of `modules` is present."""

    modules: Annotated[tuple[str, ...], _MODULES]
    message: Annotated[str | None, _MESSAGE] = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Choose(SchemaNode):
    """Rule that from `minimum` to `maximum` of `modules` are present; None means no limit."""

    modules: Annotated[tuple[str, ...], _MODULES]
    minimum: Annotated[int | None, NUMBER_OR_ZERO("the least number of them in a prompt", name="min")] = None
    maximum: Annotated[int | None, NUMBER("the largest number of them in a prompt", name="max")] = None
    message: Annotated[str | None, _MESSAGE] = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Assert(SchemaNode):
    """Rule that the condition `test` is true."""

    test: Annotated[str, _CONDITION]
    message: Annotated[str | None, _MESSAGE] = None


Combination: TypeAlias = Require | Exclude | Choose | Assert


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RuleList(SchemaNode):
    """Rules over modules anywhere in the schema. A prompt that breaks a rule is reported with the rule's `message`."""

    children: tuple[Combination | Doc, ...]

    @property
    def combinations(self) -> tuple[Combination, ...]:
        return tuple(child for child in self.children if not isinstance(child, Doc))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Example(SchemaNode):
    """Example prompt: its document, whether it is valid, text in it, an answer of its format, and text in a model's.

    None means no expectation.
    """

    prompt: str
    prompt_span: Span = field(repr=False, compare=False)
    name: Annotated[str | None, STRING("for readers")] = None
    valid: Annotated[bool | None, BOOLEAN("`true`: the prompt is accepted; `false`: it is refused")] = None
    contains: Annotated[str | None, STRING("text in the modules, arguments or turns of the prompt")] = None
    answer: Annotated[str | None, STRING("an answer that has the [format of answers](#answer)")] = None
    expect: Annotated[
        str | None, STRING("text in the answer of a model, which `promptcache test --model` generates greedily")
    ] = None

    @property
    def has_expectation(self) -> bool:
        """Return whether the example states anything that can be checked."""
        return any(each is not None for each in (self.valid, self.contains, self.answer, self.expect))


Item: TypeAlias = (
    Text | Parameter | Doc | AnswerFormat | Turn | Module | Union | Collection | Scaffold | RuleList | Example
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchemaDocument(SchemaNode):
    """Schema document as declared, with the included items in place of each `include`."""

    name: Annotated[str, STRING("the name that prompts use; any text without whitespace")] = field(kw_only=False)
    children: tuple[Item, ...] = ()
    version: Annotated[str | None, STRING("any text; a prompt can ask for it, see [Versions](#versions)")] = None
    whitespace: Annotated[Whitespace, _WHITESPACE] = Whitespace.DEDENT
    separator: Annotated[str, _SEPARATOR] = "\n"
    context: Annotated[Context, _CONTEXT] = Context.PREVIOUS
    repair: Annotated[
        str | None,
        REPAIR_NAME(
            "cached text that requests compute again, by default `first-16`, see [layout.md](layout.md#repair)"
        ),
    ] = None
    positions: Annotated[
        Placement | None,
        choice(Placement)(
            "where cached text stands in a request, by default `closed`, see "
            "[layout.md](layout.md#closed-and-fixed-positions)"
        ),
    ] = None

    @property
    def examples(self) -> tuple[Example, ...]:
        return tuple(child for child in self.children if isinstance(child, Example))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Argument(Short):
    """Text for a parameter, exactly as given."""

    name: Annotated[str, STRING("the parameter that it fills")]
    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reference(Short):
    """Reference of a prompt to a module.

    `path` is relative to the enclosing reference, or starts at the root if `absolute`. It has one step in element
    form, and any number of steps in `<use module="…">` form.
    """

    path: Annotated[
        str, STRING("the path of a module, from the module around it or, with a slash, from the root", name="module")
    ]
    span: Span = field(compare=False)
    absolute: bool = False
    arguments: tuple[Argument, ...] = ()
    children: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Message(Short):
    """A turn that the prompt adds; `role` None is bare text.

    Attributes:
        reasoning: The reasoning before an answer of the assistant, for the chat template. XML has no form for it.
        tool_fields: JSON of the fields that make it a message of tools, for the chat template: the `tool_calls` of an
            answer, or the role "tool" of a result. XML has no form for them.
    """

    role: Role | None
    text: str
    span: Span = field(compare=False)
    reasoning: str = ""
    tool_fields: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PromptDocument(Short):
    """Prompt document as written.

    Attributes:
        schema: Name of the schema.
        references: References to modules, nested as written.
        arguments: Arguments for the schema's own parameters (those outside any module).
        messages: The prompt's own turns in order. A bare text (`role` None) is alone, or comes before turns and
            continues the open turn of the schema.
        version: The version that the schema must have; None accepts every version.
        answer_format: The format of the answer; None means that of the schema.
        warnings: Problems of the document that do not prevent its use.
    """

    schema: Annotated[str, STRING("the name of the schema")] = field(kw_only=False)
    references: tuple[Reference, ...] = ()
    arguments: tuple[Argument, ...] = ()
    messages: tuple[Message, ...] = ()
    version: Annotated[str | None, STRING("the version that the schema must have")] = None
    answer_format: AnswerFormat | None = None
    span: Span = field(default=IN_PYTHON, compare=False)
    warnings: tuple[Diagnostic, ...] = field(default=(), repr=False, compare=False)


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


def place(item: SchemaNode, attribute: str, index: int = 0) -> Span:
    """Return the span of word `index` of an attribute's value, or the span of the item if that span is not known."""
    spans = next((spans for name, spans in item.places if name == attribute), ())
    return spans[index] if index < len(spans) else item.span
