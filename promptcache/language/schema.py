"""The schema as it was declared, and how one is built in Python.

Comes in: what `parse_schema` reads, or calls of the builder. Goes out: a frozen tree with a span on every node, to the
checker and to the printer. This file knows no XML, no rules and no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypedDict, Unpack

from promptcache.diagnostics import Span
from promptcache.language.nodes import (
    IN_PYTHON,
    Assert,
    Choose,
    Combination,
    Context,
    Doc,
    Example,
    Exclude,
    Item,
    Module,
    Parameter,
    ParameterType,
    Places,
    Require,
    Role,
    RuleList,
    Scaffold,
    Text,
    Turn,
    Union,
    Whitespace,
    join_path,
    walk,
)

__all__ = [
    "IN_PYTHON",
    "Assert",
    "Choose",
    "Combination",
    "Content",
    "Context",
    "Doc",
    "Example",
    "Exclude",
    "Item",
    "Module",
    "Parameter",
    "ParameterType",
    "Places",
    "Require",
    "Role",
    "RuleList",
    "Scaffold",
    "Schema",
    "Text",
    "Turn",
    "Union",
    "Whitespace",
    "join_path",
    "module",
    "place",
    "slot",
    "walk",
]

Content: TypeAlias = str | Parameter | Module | Union | Turn | Doc
"""What stands in a module or turn that is built in Python; a string is text, exactly as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A schema document as it was declared.

    `Schema("qa").module("system", "Be brief.", required=True)` builds one without XML. Every method returns a new
    schema; texts are data, taken exactly as they are given.
    """

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

    def module(self, name: str, /, *content: Content, **options: Unpack[ModuleOptions]) -> Schema:
        """Add a module; see `module` for what it takes."""
        return self.with_module(module(name, *content, **options))

    def with_module(self, *modules: Module) -> Schema:
        """Add modules that were made before, or taken from another schema."""
        return replace(self, children=(*self.children, *modules))

    def union(
        self, *members: Module, name: str | None = None, required: bool = False, default: str | None = None
    ) -> Schema:
        """Add alternatives, of which a prompt uses at most one."""
        union = Union(children=members, span=IN_PYTHON, name=name, required=required, default=default)
        return replace(self, children=(*self.children, union))

    def text(self, *content: str | Parameter) -> Schema:
        """Add text and slots that are part of every prompt."""
        return replace(self, children=(*self.children, *_items(content)))

    def system(self, *content: Content) -> Schema:
        """Add a system turn."""
        return self._turn(Role.SYSTEM, content)

    def user(self, *content: Content) -> Schema:
        """Add a user turn; as the last thing with text it stays open for the text of prompts."""
        return self._turn(Role.USER, content)

    def assistant(self, *content: Content) -> Schema:
        """Add an assistant turn."""
        return self._turn(Role.ASSISTANT, content)

    def rule(self, *rules: Combination) -> Schema:
        """Add rules: `Require`, `Exclude`, `Choose` and `Assert`."""
        return replace(self, children=(*self.children, RuleList(children=rules, span=IN_PYTHON)))

    def _turn(self, role: Role, content: tuple[Content, ...]) -> Schema:
        turn = Turn(role=role, children=_items(content), span=IN_PYTHON)
        return replace(self, children=(*self.children, turn))


class ModuleOptions(TypedDict, total=False):
    """The options of a module, as `docs/language.md` describes them."""

    required: bool
    requires: tuple[str, ...]
    excludes: tuple[str, ...]
    after: tuple[str, ...]
    cache: bool | None
    reserve: int | None
    context: Context | None
    separator: str | None


def module(name: str, /, *content: Content, **options: Unpack[ModuleOptions]) -> Module:
    """Build a module of text, slots, and whatever else stands in one.

    `module("trip", "Plan ", slot("days", 4, default="three"), " days.", requires=("visa",))`
    """
    return Module(name=name, children=_items(content), span=IN_PYTHON, **options)


def slot(
    name: str,
    length: int,
    *,
    default: str | None = None,
    placeholder: str | None = None,
    required: bool = False,
    kind: ParameterType = ParameterType.TEXT,
    choices: tuple[str, ...] = (),
    pattern: str | None = None,
) -> Parameter:
    """Build a parameter, to stand among the texts of a module."""
    return Parameter(
        name=name,
        length=length,
        span=IN_PYTHON,
        default=default,
        placeholder=placeholder,
        required=required,
        type=kind,
        choices=choices,
        pattern=pattern,
    )


def _items(content: tuple[Content, ...]) -> tuple[Item, ...]:
    return tuple(Text(text=item, span=IN_PYTHON, exact=True) if isinstance(item, str) else item for item in content)


def place(
    item: Schema | Module | Union | Parameter | Scaffold | Combination | Example, attribute: str, index: int = 0
) -> Span:
    """Return where word `index` of an attribute's value stands, or the item itself where no place is known."""
    places = [span for name, span in item.places if name == attribute]
    return places[index] if index < len(places) else item.span
