"""Read a schema document and all documents that it includes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from promptcache.diagnostics import PATH, InvalidValue, SchemaError
from promptcache.language.syntax.files import Files, Folder
from promptcache.language.syntax.include import Includes
from promptcache.language.syntax.nodes import SchemaDocument
from promptcache.language.syntax.read_items import SchemaReader
from promptcache.language.syntax.source import Source, decode, read_document
from promptcache.language.syntax.xml import parse_xml


class Read(NamedTuple):
    """Document, and whether the document or one of its includes is a template."""

    document: SchemaDocument
    rendered: bool


def read_schema(text: str | bytes, *, source: str, folder: Files | None, context: Mapping[str, object] | None) -> Read:
    """Read a schema document from text; `folder` contains the files that the document names.

    Raises:
        SchemaError: all faults of XML or structure, by file and place.
    """
    return _read(decode(text, source, SchemaError), None if folder is None else Folder.of(folder), Includes(context))


def read_schema_file(path: str | Path, context: Mapping[str, object] | None) -> Read:
    """Read a schema file, or a template of one.

    Raises:
        SchemaError: as `read_schema`, or the file cannot be read.
    """
    PATH.check("path", path, InvalidValue)
    includes, where = Includes(context), Path(path)
    source = includes.source(read_document(where, SchemaError), str(path))
    includes.chain.append(where.resolve())
    return _read(source, Folder.of(where.parent), includes)


def _read(source: Source, folder: Folder | None, includes: Includes) -> Read:
    document = SchemaReader(folder, includes).schema(parse_xml(source, source.name, SchemaError))
    return Read(document, includes.rendered)
