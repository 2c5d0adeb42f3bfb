"""Documents on disk and standard input, values of templates, the schema of a prompt, and files that commands write.

Files are written whole or not at all, and never over a document that was read, a pipe or a device.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import promptcache
from promptcache.atomic import atomic_write
from promptcache.cli.exits import UsageMistake
from promptcache.diagnostics import LanguageError, PromptError, diagnostic, did_you_mean, suggest
from promptcache.language import (
    HEAD_BYTES,
    MAX_BYTES,
    CheckedSchema,
    Prompt,
    check_schema,
    is_template,
    parse_prompt,
    parse_schema,
    read_document,
    read_schema_file,
    root_tag,
)

_PACKAGE = Path(promptcache.__file__).parent
SHIPPED_FOLDERS = (_PACKAGE / "schemas", _PACKAGE.parent / "schemas")
"""The shipped schemas in an installed package (see pyproject.toml), and in a checkout."""

_STDIN = "<stdin>"
_MAX_FILES = 1000  # searched per folder
_ROOTS = frozenset({"schema", "prompt"})


class DocumentKind(StrEnum):
    """The kind of a document by its root element; a file that cannot be read is just a file."""

    SCHEMA = "schema"
    PROMPT = "prompt"
    FILE = "file"


@dataclass(slots=True)
class TemplateContext:
    """Values for templates. `used` becomes true when a template is rendered."""

    file: Path
    values: dict[str, Any] = field(repr=False)
    used: bool = False


class Sources:
    """The documents of a command.

    Attributes:
        context: The values of `--context`.
        names: Names of the documents that were read, as their spans carry them.
    """

    def __init__(self, context: Path | None = None) -> None:
        """Begin to read; `context` is the file of `--context`, a JSON object."""
        self.names = set[str]()
        self.context: TemplateContext | None = None
        if context is None:
            return
        with context.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageMistake(f"--context {context}: the file has more than {MAX_BYTES} bytes")
        try:
            values = json.loads(data.decode("utf-8-sig"))
        except (ValueError, RecursionError) as fault:
            raise UsageMistake(f'--context {context} is not JSON, such as {{"name": "value"}}: {fault}') from None
        if not isinstance(values, dict):
            raise UsageMistake(f'--context {context}: an object is expected, as {{"name": "value"}}')
        self.context = TemplateContext(context, values)

    def check_context(self) -> None:
        """Raise `UsageMistake` if values were given and no template was read."""
        if self.context is not None and not self.context.used:
            raise UsageMistake("--context is for templates, *.xml.j2, and none was read")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDocument:
    """A document that was read.

    Attributes:
        name: The name that its spans carry: the path as given, or "<stdin>".
        path: None for standard input.
        context: Values for a template, or for templates that the document includes.
    """

    name: str
    path: Path | None
    data: bytes = field(repr=False)
    context: TemplateContext | None = None

    @property
    def kind(self) -> DocumentKind:
        """The kind by the root element; a misspelt root counts as the nearest kind."""
        root = root_tag(self.data)
        kinds = (DocumentKind.SCHEMA, DocumentKind.PROMPT)
        return DocumentKind((root and suggest(root.name, kinds)) or DocumentKind.SCHEMA)

    @property
    def schema_name(self) -> str | None:
        """The name in the start tag of a schema, read without parsing the document."""
        root = root_tag(self.data)
        return root.attributes.get("name") if root and root.name == DocumentKind.SCHEMA else None

    @property
    def folder(self) -> Path:
        """The folder of the document; for standard input the working directory."""
        return self.path.parent if self.path is not None else Path()


def read(name: str, sources: Sources) -> InputDocument:
    """Read a file, or standard input for "-".

    Raises:
        LanguageError: PC010, the file does not exist or cannot be read.
        UsageMistake: Standard input was read before, or the name is empty.
    """
    if not name:
        raise UsageMistake("the name of a file is empty")
    if name == "-":
        if _STDIN in sources.names:
            raise UsageMistake("standard input (-) can only be one of the documents")
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        document = InputDocument(name=_STDIN, path=None, data=data, context=sources.context)
    else:
        data = read_document(Path(name), LanguageError)
        document = InputDocument(name=name, path=Path(name), data=data, context=sources.context)
    sources.names.add(document.name)
    return document


def checked_schema(document: InputDocument) -> CheckedSchema:
    """Parse and check a schema document. A `SchemaError` has all of its faults."""
    if document.path is None:
        return check_schema(parse_schema(document.data, source=document.name))
    context = document.context
    read = read_schema_file(document.name, None if context is None else context.values)
    if context is not None:
        context.used |= read.rendered
    return check_schema(read.document)


def read_schemas(names: Iterable[str], sources: Sources) -> tuple[CheckedSchema, ...]:
    """Read and check schemas, and refuse a `--context` that none of them uses."""
    schemas = tuple(checked_schema(read(name, sources)) for name in names)
    sources.check_context()
    return schemas


def parsed_prompt(document: InputDocument) -> Prompt:
    """Parse a prompt document. A `PromptError` has all faults of its structure."""
    if not is_template(document.name):
        folder = None if document.path is None else document.path.parent
        return parse_prompt(document.data, source=document.name, folder=folder)
    if document.context is None:
        return Prompt.from_file(document.name)
    document.context.used = True
    return Prompt.from_file(document.name, context=document.context.values)


def files_read(sources: Sources, *schemas: CheckedSchema) -> frozenset[str]:
    """Return the names of all files that were read, with files that schemas include and the file of `--context`."""
    included = (module.span.source for schema in schemas for module in schema.modules.values())
    context = () if sources.context is None else (str(sources.context.file),)
    return frozenset((*sources.names, *included, *context))


def find_schema(
    prompt: Prompt,
    document: InputDocument,
    given: Sequence[InputDocument],
    offered: Sequence[InputDocument],
    sources: Sources,
) -> InputDocument:
    """Return the document of the schema that a prompt names.

    Args:
        document: The document of the prompt; the search begins in its folder.
        given: Other documents of the command. If several have the name, the nearest to the prompt is taken.
        offered: Documents of --schema. If there are any, no folder is searched; if none has the name, the first is
            returned and checking the prompt against it reports the wrong name.
        sources: Records a document that was found by search.

    Raises:
        PromptError: PC422, there is no such schema, or several in one folder.
    """
    here, above, name = document.folder, _above(document.folder), prompt.schema
    folders = (here, here / "schemas", above, above / "schemas", _above(above) / "schemas")  # the nearest first
    near = [folder.resolve() for folder in folders]
    for documents in (given, offered):
        named = [each for each in documents if each.schema_name == name]
        if named:
            return min(named, key=lambda each: [*near, folder := each.folder.resolve()].index(folder))
    if offered:
        return offered[0]
    seen: list[InputDocument] = []
    for folder in folders:
        schemas = [*_schemas_in(folder)]
        named = [each for each in schemas if each.schema_name == name]
        if len(named) == 1:
            return read(named[0].name, sources)
        if named:
            message = f"there are several schemas called '{name}': {' and '.join(each.name for each in named)}"
            raise PromptError([diagnostic("PC422", message, prompt.span, "choose with --schema FILE")])
        seen += schemas
    by_file = next((each.schema_name for each in seen if each.path and each.path.name == Path(name).name), None)
    if by_file is not None:
        fix = f'write the name of the schema, not its file: schema="{by_file}"'
    else:
        fix = did_you_mean(name, (each.schema_name or "" for each in seen)) or "say where it is with --schema FILE"
    message = f"no schema called '{name}' was found near {document.name}"
    raise PromptError([diagnostic("PC422", message, prompt.span, fix)])


def only_schema(sources: Sources) -> InputDocument:
    """Return the only schema in the working directory, or in `schemas` in it."""
    found = next(filter(None, ([*_schemas_in(folder)] for folder in (Path(), Path("schemas")))), [])
    if len(found) != 1:
        names = " and ".join(each.name for each in found) or "none"
        raise UsageMistake(f"name the schema with --schema FILE: there is not one here, but {names}")
    return read(found[0].name, sources)


def _above(folder: Path) -> Path:
    return folder / ".." if folder.name in {"", ".."} else folder.parent


def _schemas_in(folder: Path) -> Iterator[InputDocument]:
    """Yield the heads of the schema documents in a folder, by file name."""
    try:
        paths = sorted([*folder.glob("*.xml"), *folder.glob("*.xml.j2")])[:_MAX_FILES]
    except OSError:
        return  # the folder cannot be listed
    heads = map(_head_of, paths)
    yield from (each for each in heads if each.schema_name is not None)


def documents_in(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names with each folder replaced by the schemas and prompts in it and below, by path."""
    found: list[str] = []
    for name in names:
        if not Path(name).is_dir() or not name:
            found.append(name)
            continue
        paths = sorted([*Path(name).rglob("*.xml"), *Path(name).rglob("*.xml.j2")])
        roots = {path: root_tag(_head_of(path).data) for path in paths}
        documents = [str(path) for path, root in roots.items() if root is None or root.name in _ROOTS]
        if not documents:
            raise UsageMistake(f"folder {name} has no schema and no prompt, *.xml or *.xml.j2")
        found += documents
    return tuple(found)


def _head_of(path: Path) -> InputDocument:
    """Return a document with the beginning of its data, or with no data if it cannot be read."""
    data = b""
    with suppress(OSError):
        if path.is_file():  # reading a pipe would block
            with path.open("rb") as file:
                data = file.read(HEAD_BYTES)
    return InputDocument(name=str(path), path=path, data=data)


def shipped_schemas() -> Mapping[str, Path]:
    """Return the schemas that come with the package, by name."""
    folder = next((folder for folder in SHIPPED_FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.xml"))} if folder else {}


def write_new(files: Mapping[Path, str]) -> None:
    """Write files that do not exist yet, and their folders. If one exists or cannot be written, none is written."""
    existing = [str(path) for path in files if path.exists()]
    if existing:
        verb = "exists" if len(existing) == 1 else "exist"
        raise UsageMistake(f"{' and '.join(existing)} {verb} already; nothing was written")
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def write_made(files: Mapping[Path, str], read: Set[str]) -> None:
    """Write files that are made of the documents `read`; older ones are replaced. All targets are checked first."""
    for path in files:
        check_target(path, read)
    for path, text in files.items():
        replace_file(path, text.encode())


def check_target(path: Path, read: Set[str]) -> None:
    """Refuse a target that is one of the files `read`, or at which no file can be written."""
    if path.exists() and any(other.exists() and path.samefile(other) for other in map(Path, read)):
        raise UsageMistake(f"{path} is what is read: write to another file")
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise UsageMistake(f"{path} is a pipe or a device: write to a file")
    if not path.parent.is_dir():
        fault = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        raise OSError(fault, os.strerror(fault), str(path))


def replace_file(path: Path, data: bytes) -> None:
    """Write or replace a file atomically. It keeps its mode, a link its target, and a read-only file is refused."""
    target = path.resolve()
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        with atomic_write(target) as file:
            file.write(data)
    except OSError as error:  # names the file as the user did
        raise OSError(error.errno, error.strerror, str(path)) from None
