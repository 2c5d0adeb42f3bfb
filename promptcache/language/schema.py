"""Read a schema document and all documents that it includes, or build a schema in Python.

Its nodes are those of `syntax.nodes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypedDict, Unpack

from promptcache.diagnostics import PATH, InvalidValue, SchemaError
from promptcache.language.messages import ChatMessages, read_messages
from promptcache.language.syntax import nodes
from promptcache.language.syntax.files import Files, Folder, no_template
from promptcache.language.syntax.nodes import walk
from promptcache.language.syntax.read_items import SchemaReader
from promptcache.language.syntax.source import decode, read_document
from promptcache.language.syntax.whitespace import is_blank

Content: TypeAlias = str | nodes.Parameter | nodes.Module | nodes.Union | nodes.Collection | nodes.Turn | nodes.Doc
"""Content of a module or turn that is built in Python; a string is exact text."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Schema(nodes.SchemaDocument):
    """Schema document as declared.

    `Schema("qa").module("system", "Be brief.", required=True)` builds a schema without XML. Every method returns a
    new schema. Texts are used exactly as given. Turns are added at the end. If a schema ends with a turn, modules,
    unions, collections and text are added at the end of this turn, unless they contain turns themselves.
    """

    @classmethod
    def from_xml(cls, text: str | bytes) -> Schema:
        """Return the schema of a document that names no other files.

        Raises:
            SchemaError: as `parse_schema`.
        """
        return parse_schema(text)

    @classmethod
    def from_file(cls, path: str | Path, *, context: Mapping[str, object] | None = None) -> Schema:
        """Load a schema file; the files that it names must be in the same folder or below.

        Args:
            path: A document, or a template of one, `*.xml.j2`.
            context: Values for this template and for included templates: plain data, as in JSON.

        Raises:
            SchemaError: the file cannot be read, or as `parse_schema`.
        """
        return _used(read_schema_file(path, context), context)

    @classmethod
    def from_messages(cls, name: str, messages: ChatMessages) -> Schema:
        """Return a schema whose text is a chat: each message is a turn that every prompt has.

        A final `user` turn stays open, as with `user`: bare text of a prompt continues it.

        Args:
            name: Name of the schema.
            messages: `{"role": …, "content": …}` each; the content is text, or a list of text parts, used exactly.

        Raises:
            InvalidValue: A message is not supported; names its place.
        """
        turns = (
            nodes.Turn(
                role=each.role, children=(nodes.Text(text=each.text, span=each.span, exact=True),), span=each.span
            )
            for each in read_messages(messages)
            if each.role is not None  # as in all messages of a chat
        )
        return cls(name, children=tuple(turns))

    def module(self, name: str, /, *content: Content, **options: Unpack[ModuleOptions]) -> Schema:
        """Add a module; the arguments are those of the function `module`."""
        return self._with((module(name, *content, **options),))

    def with_module(self, *modules: nodes.Module) -> Schema:
        """Add existing modules, for example from another schema."""
        return self._with(modules)

    def union(
        self, *members: nodes.Module, name: str | None = None, required: bool = False, default: str | None = None
    ) -> Schema:
        """Add a union; a prompt uses at most one of its members."""
        return self._with((nodes.Union(children=members, name=name, required=required, default=default),))

    def collection(
        self,
        name: str,
        *members: nodes.Module,
        minimum: int = 0,
        maximum: int | None = None,
        context: nodes.Context = nodes.Context.GUARANTEED,
        separator: str | None = None,
    ) -> Schema:
        """Add a collection; a prompt uses its members in any order."""
        collection = nodes.Collection(
            name=name,
            children=members,
            minimum=minimum,
            maximum=maximum,
            context=context,
            separator=separator,
        )
        return self._with((collection,))

    def text(self, *content: str | nodes.Parameter) -> Schema:
        """Add text and slots that are part of every prompt."""
        return self._with(_items(content))

    def system(self, *content: Content) -> Schema:
        """Add a system turn."""
        return self._turn(nodes.Role.SYSTEM, content)

    def user(self, *content: Content) -> Schema:
        """Add a user turn; if no text follows it, it stays open for the text of prompts."""
        return self._turn(nodes.Role.USER, content)

    def assistant(self, *content: Content) -> Schema:
        """Add an assistant turn."""
        return self._turn(nodes.Role.ASSISTANT, content)

    def rule(self, *rules: nodes.Combination) -> Schema:
        """Add rules: `Require`, `Exclude`, `Choose` and `Assert`."""
        return replace(self, children=(*self.children, nodes.RuleList(children=rules)))

    def scaffold(self, *modules: str, name: str | None = None) -> Schema:
        """Add a scaffold: modules, given by their paths from the root, that are also encoded together."""
        return replace(self, children=(*self.children, nodes.Scaffold(modules=modules, name=name)))

    def answer(
        self,
        kind: nodes.ParameterType = nodes.ParameterType.TEXT,
        *,
        choices: tuple[str, ...] = (),
        pattern: str | None = None,
    ) -> Schema:
        """State the format of answers to prompts of this schema; the arguments are those of `slot`."""
        return replace(self, children=(*self.children, nodes.AnswerFormat(type=kind, choices=choices, pattern=pattern)))

    def _with(self, items: tuple[nodes.Item, ...]) -> Schema:
        children = self.children
        index = next((index for index in reversed(range(len(children))) if not _is_empty(children[index])), 0)
        turn = children[index] if children else None
        if not isinstance(turn, nodes.Turn) or any(isinstance(each, nodes.Turn) for _, each in walk(items)):
            return replace(self, children=(*children, *items))
        longer = replace(turn, children=(*turn.children, *items))
        return replace(self, children=(*children[:index], longer, *children[index + 1 :]))

    def _turn(self, role: nodes.Role, content: tuple[Content, ...]) -> Schema:
        turn = nodes.Turn(role=role, children=_items(content))
        return replace(self, children=(*self.children, turn))


def parse_schema(
    text: str | bytes,
    *,
    source: str = "<schema>",
    folder: Files | None = None,
    context: Mapping[str, object] | None = None,
) -> Schema:
    """Parse a schema document.

    Args:
        text: The document; bytes must be UTF-8.
        source: Name of the document in diagnostics.
        folder: Folder of the files that `src` and `include` name, or the texts of these files by path. If it is None,
            `src` and `include` are errors.
        context: Values for included templates.

    Raises:
        SchemaError: all faults of XML or structure, by file and place.
    """
    return _used(read_schema(text, source=source, folder=folder, context=context), context)


class Read(NamedTuple):
    """Schema, and whether its document or one of its includes is a template."""

    document: Schema
    rendered: bool


def read_schema(text: str | bytes, *, source: str, folder: Files | None, context: Mapping[str, object] | None) -> Read:
    """Read a schema document from text; `folder` contains the files that the document names.

    Raises:
        SchemaError: all faults of XML or structure, by file and place.
    """
    reader = SchemaReader(None if folder is None else Folder.of(folder), context)
    document = Schema(**reader.schema(decode(text, source, SchemaError)))
    return Read(document, reader.rendered)


def read_schema_file(path: str | Path, context: Mapping[str, object] | None) -> Read:
    """Read a schema file, or a template of one.

    Raises:
        SchemaError: as `read_schema`, or the file cannot be read.
    """
    PATH.check("path", path, InvalidValue)
    where = Path(path)
    reader = SchemaReader(Folder.of(where.parent), context)
    source = reader.source(read_document(where, SchemaError), str(path))
    reader.chain.append(where.resolve())
    document = Schema(**reader.schema(source))
    return Read(document, reader.rendered)


def _used(read: Read, context: Mapping[str, object] | None) -> Schema:
    """Return the document, or raise an error if a context is given but no file is a template."""
    if context is not None and not read.rendered:
        raise SchemaError([no_template(read.document.span.source)])
    return read.document


class ModuleOptions(TypedDict, total=False):
    """Options of a module; see `docs/language.md`."""

    required: bool
    requires: tuple[str, ...]
    excludes: tuple[str, ...]
    after: tuple[str, ...]
    cache: bool | None
    reserve: int | None
    priority: int | None
    context: nodes.Context | None
    separator: str | None


def module(name: str, /, *content: Content, **options: Unpack[ModuleOptions]) -> nodes.Module:
    """Build a module of text, slots and other content.

    `module("trip", "Plan ", slot("days", 4, default="three"), " days.", requires=("visa",))`
    """
    return nodes.Module(name=name, children=_items(content), **options)


def slot(
    name: str,
    length: int,
    *,
    default: str | None = None,
    placeholder: str | None = None,
    required: bool = False,
    kind: nodes.ParameterType = nodes.ParameterType.TEXT,
    choices: tuple[str, ...] = (),
    pattern: str | None = None,
    message: str | None = None,
) -> nodes.Parameter:
    """Build a parameter for the content of a module."""
    return nodes.Parameter(
        name=name,
        length=length,
        default=default,
        placeholder=placeholder,
        required=required,
        type=kind,
        choices=choices,
        pattern=pattern,
        message=message,
    )


def _items(content: tuple[Content, ...]) -> tuple[nodes.Item, ...]:
    return tuple(nodes.Text(text=item, exact=True) if isinstance(item, str) else item for item in content)


def _is_empty(item: nodes.Item) -> bool:
    match item:
        case nodes.Text():
            return not item.text if item.exact else is_blank(item.text)
        case nodes.Collection():
            return False
        case nodes.Module() | nodes.Union():
            return all(_is_empty(child) for child in item.children)
        case _:
            return not isinstance(item, nodes.Parameter | nodes.Turn)
