"""Documents on disk and standard input: reading them, telling schemas from prompts, finding the schema of a prompt.

Comes in: what the user named. Goes out: documents as bytes, or checked schemas and prompts. This file does not know
what a command does with them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

from promptcache.cli.contexts import TemplateContext
from promptcache.cli.exits import UsageMistake
from promptcache.cli.report import Kind
from promptcache.cli.sources import Sources
from promptcache.diagnostics import Diagnostic, LanguageError, PromptError, did_you_mean, suggest
from promptcache.language import CheckedSchema, Prompt, Schema, check_schema, load_prompt, parse_prompt, parse_schema
from promptcache.language.read_schema import read_schema_file
from promptcache.language.syntax.files import is_template
from promptcache.language.syntax.source import MAX_BYTES, read_document

_KINDS = (Kind.SCHEMA, Kind.PROMPT)
_STDIN = "-"
_STDIN_NAME = "<stdin>"
_HEAD_BYTES = 1 << 16  # of a file that may turn out to be a schema; its start tag stands at the top
_MAX_FILES = 1000  # looked into per folder
# possessive, so that a hostile file costs one pass and no backtracking
_ROOT = re.compile(
    r"""(?:\s++|<!--.*?-->|<\?.*?\?>|<!(?!--)[^>]*+>)*+<([^\s/>]++)((?:"[^"]*+"|'[^']*+'|[^>"'])*+)""", re.DOTALL
)
_NAME = re.compile(r"""\bname\s*=\s*(?:"([^"]*)"|'([^']*)')""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document as it was read.

    Attributes:
        name: As its spans carry it: the path as given, or "<stdin>".
        path: None for standard input.
        context: What it may use if it is a template, or includes one.
    """

    name: str
    path: Path | None
    data: bytes = field(repr=False)
    context: TemplateContext | None = None

    @property
    def kind(self) -> Kind:
        """What the root element says; a misspelt one counts as what was most likely meant."""
        root = _ROOT.match(_text(self.data))
        return Kind(suggest(root[1], _KINDS) or Kind.SCHEMA) if root else Kind.SCHEMA

    @property
    def schema_name(self) -> str | None:
        """The name that a schema document gives itself, read without parsing it."""
        root = _ROOT.match(_text(self.data))
        name = _NAME.search(root[2]) if root and root[1] == Kind.SCHEMA else None
        return unescape(name[1] or name[2] or "") if name else None

    @property
    def folder(self) -> Path:
        """Where the document lies; standard input counts as lying in the working directory."""
        return self.path.parent if self.path is not None else Path()


def read(name: str, sources: Sources) -> Document:
    """Read a file, or standard input for "-".

    Raises:
        LanguageError: PC010, there is no such file or it cannot be read.
        UsageMistake: standard input was read before, or the name is empty.
    """
    if not name:
        raise UsageMistake("the name of a file is empty")
    if name == _STDIN:
        if _STDIN_NAME in sources:
            raise UsageMistake("standard input (-) can only be one of the documents")
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        document = Document(name=_STDIN_NAME, path=None, data=data, context=sources.context)
    else:
        data = read_document(Path(name), LanguageError)
        document = Document(name=name, path=Path(name), data=data, context=sources.context)
    sources.add(document.name)
    return document


def checked_schema(document: Document) -> CheckedSchema:
    """Parse and check a schema document.

    Raises:
        SchemaError: every fault that it has.
    """
    context = document.context
    values = context.values if context is not None else None
    if document.path is None:
        return check_schema(parse_schema(document.data, source=document.name))
    read = read_schema_file(document.name, values)
    if context is not None:
        context.used |= read.rendered
    return check_schema(Schema.of(read.document))


def parsed_prompt(document: Document) -> Prompt:
    """Parse a prompt document.

    Raises:
        PromptError: every fault of structure.
    """
    if not is_template(document.name):
        return parse_prompt(document.data, source=document.name)
    if document.context is None:
        return load_prompt(document.name)
    document.context.used = True
    return load_prompt(document.name, context=document.context.values)


def files_read(sources: Sources, *schemas: CheckedSchema) -> frozenset[str]:
    """Return the names of all files that were read, those that schemas include and that of `--context` among them."""
    included = (module.span.source for schema in schemas for module in schema.modules.values())
    context = () if sources.context is None else (str(sources.context.file),)
    return frozenset((*sources.names, *included, *context))


def find_schema(
    prompt: Prompt, document: Document, given: Sequence[Document], offered: Sequence[Document], sources: Sources
) -> Document:
    """Return the document of the schema that a prompt is meant for.

    Args:
        prompt: Names the schema.
        document: The prompt's, which says where to look.
        given: Documents of which one may be it; of several, the nearest to the prompt.
        offered: Documents named with --schema: where there are any, no others are looked for, and when none has the
            name the first is returned, so that the prompt is told.
        sources: Where the document is added when it was looked for.

    Raises:
        PromptError: PC422, there is none, or there are several in one folder.
    """
    folders = [folder.resolve() for folder in _near(document)]
    for documents in (given, offered):
        named = [each for each in documents if each.schema_name == prompt.schema]
        if named:
            return min(named, key=lambda each: _rank(each.folder.resolve(), folders))
    return offered[0] if offered else _look_for(prompt, document, sources)


def _look_for(prompt: Prompt, near: Document, sources: Sources) -> Document:
    name, seen = prompt.schema, list[str]()
    for folder in _near(near):
        schemas = list(_schemas_in(folder))
        found = [document for document in schemas if document.schema_name == name]
        if len(found) > 1:
            files = " and ".join(document.name for document in found)
            raise _not_found(prompt, f"there are several schemas called '{name}': {files}", "choose with --schema FILE")
        if found:
            return read(found[0].name, sources)
        seen += [document.schema_name or "" for document in schemas]
    fix = did_you_mean(name, seen) or "say where it is with --schema FILE"
    raise _not_found(prompt, f"no schema called '{name}' was found near {near.name}", fix)


def _not_found(prompt: Prompt, message: str, fix: str) -> PromptError:
    return PromptError([Diagnostic(code="PC422", message=message, span=prompt.span, help=fix)])


def _near(prompt: Document) -> tuple[Path, ...]:
    """Return where the schema of a prompt may lie, the nearest folder first."""
    here = prompt.folder
    above = _above(here)
    return here, here / "schemas", above, above / "schemas", _above(above) / "schemas"


def _above(folder: Path) -> Path:
    return folder / ".." if folder.name in {"", ".."} else folder.parent


def _rank(folder: Path, folders: Sequence[Path]) -> int:
    return folders.index(folder) if folder in folders else len(folders)


def _schemas_in(folder: Path) -> Iterator[Document]:
    """Yield the schema documents of a folder with the beginning of their text, by file name."""
    try:
        paths = sorted([*folder.glob("*.xml"), *folder.glob("*.xml.j2")])[:_MAX_FILES]
    except OSError:
        return  # a folder that cannot be listed holds nothing for us
    for path in paths:
        document = head_of(path)
        if document.schema_name is not None:
            yield document


def head_of(path: Path) -> Document:
    """Return a document with only the beginning of its text, enough to tell what it is; empty if it cannot be read."""
    data = b""
    with suppress(OSError):
        if path.is_file():  # a pipe would be waited for
            with path.open("rb") as file:
                data = file.read(_HEAD_BYTES)
    return Document(name=str(path), path=path, data=data)


def _text(data: bytes) -> str:
    return data[:_HEAD_BYTES].decode("utf-8-sig", errors="replace")
