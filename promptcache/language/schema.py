"""The declared schema: frozen nodes with spans, read from a document or built in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeAlias, TypedDict, Unpack

from promptcache.diagnostics import FLAG, InvalidValue, SchemaError, instance
from promptcache.language.read_schema import Read, read_schema, read_schema_file
from promptcache.language.syntax.files import Files, no_template
from promptcache.language.syntax.nodes import (
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
    SchemaDocument,
    Text,
    Turn,
    Union,
    Whitespace,
    join_path,
    place,
    walk,
)
from promptcache.language.syntax.whitespace import is_blank

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
    "parse_schema",
    "place",
    "slot",
    "walk",
]

Content: TypeAlias = str | Parameter | Module | Union | Turn | Doc
"""What stands in a module or turn that is built in Python; a string is text, exactly as it is."""

_DOCUMENT = instance("a schema document", SchemaDocument)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schema(SchemaDocument):
    """A schema document as it was declared.

    `Schema("qa").module("system", "Be brief.", required=True)` builds one without XML. Every method returns a new
    schema; texts are data, taken exactly as they are given. Turns are added at the end. Modules, unions and text are
    added before a final open `user` turn, which they would close.
    """

    @classmethod
    def from_file(cls, path: str | Path, *, context: Mapping[str, object] | None = None) -> Schema:
        """Read a schema file; the files that it names lie in its own folder or below.

        Args:
            path: A document, or a template of one, `*.xml.j2`.
            context: What it and the templates that it includes may use: plain data, as JSON has it.

        Raises:
            SchemaError: the file cannot be read, or what `parse_schema` finds.
        """
        return cls.of(_used(read_schema_file(path, context), context))

    @classmethod
    def of(cls, document: SchemaDocument) -> Schema:
        """Return a document that was read, to build on."""
        _DOCUMENT.check("document", document, InvalidValue)
        return cls(**{each.name: getattr(document, each.name) for each in fields(document)})

    def module(self, name: str, /, *content: Content, **options: Unpack[ModuleOptions]) -> Schema:
        """Add a module; see `module` for what it takes."""
        return self.with_module(module(name, *content, **options))

    def with_module(self, *modules: Module, at_end: bool = False) -> Schema:
        """Add modules that were made before, or taken from another schema.

        Args:
            at_end: Add them after everything else. A final open `user` turn is closed by that; by default they go
                before it.
        """
        FLAG.check("at_end", at_end, InvalidValue)
        return self._with(modules, at_end=at_end)

    def union(
        self, *members: Module, name: str | None = None, required: bool = False, default: str | None = None
    ) -> Schema:
        """Add alternatives, of which a prompt uses at most one."""
        union = Union(children=members, span=IN_PYTHON, name=name, required=required, default=default)
        return self._with((union,))

    def text(self, *content: str | Parameter) -> Schema:
        """Add text and slots that are part of every prompt."""
        return self._with(_items(content))

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

    def scaffold(self, *modules: str, name: str | None = None) -> Schema:
        """Name modules, by their paths from the root, that are also encoded together."""
        return replace(self, children=(*self.children, Scaffold(modules=modules, span=IN_PYTHON, name=name)))

    def _with(self, items: tuple[Item, ...], *, at_end: bool = False) -> Schema:
        index = None if at_end else _open_turn(self.children)
        index = len(self.children) if index is None else index
        return replace(self, children=(*self.children[:index], *items, *self.children[index:]))

    def _turn(self, role: Role, content: tuple[Content, ...]) -> Schema:
        turn = Turn(role=role, children=_items(content), span=IN_PYTHON)
        return replace(self, children=(*self.children, turn))


def parse_schema(
    text: str | bytes,
    *,
    source: str = "<schema>",
    folder: Files | None = None,
    context: Mapping[str, object] | None = None,
) -> Schema:
    """Read a schema document.

    Args:
        text: The document; bytes must be UTF-8.
        source: Its name in diagnostics.
        folder: Where the files lie that `src` and `include` name, or the texts of these files by their paths; without
            it, these are errors.
        context: What templates that it includes may use.

    Raises:
        SchemaError: every fault of XML or structure, by file and place.
    """
    return Schema.of(_used(read_schema(text, source=source, folder=folder, context=context), context))


def _used(read: Read, context: Mapping[str, object] | None) -> SchemaDocument:
    """Refuse a context for which there is no template."""
    if context is not None and not read.rendered:
        raise SchemaError([no_template(read.document.span.source)])
    return read.document


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
    message: str | None = None,
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
        message=message,
    )


def _items(content: tuple[Content, ...]) -> tuple[Item, ...]:
    return tuple(Text(text=item, span=IN_PYTHON, exact=True) if isinstance(item, str) else item for item in content)


def _open_turn(items: tuple[Item, ...]) -> int | None:
    """Return the index of the final `user` turn that prompts continue, or None if there is none."""
    last = next((index for index in reversed(range(len(items))) if not _is_empty(items[index])), None)
    if last is None:
        return None
    turn = items[last]
    return last if isinstance(turn, Turn) and turn.role is Role.USER else None


def _is_empty(item: Item) -> bool:
    """Whether an item holds neither text nor a slot nor a turn."""
    match item:
        case Text():
            return not item.text if item.exact else is_blank(item.text)
        case Module() | Union():
            return all(_is_empty(child) for child in item.children)
        case _:
            return not isinstance(item, Parameter | Turn)
