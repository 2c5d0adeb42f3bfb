"""Open a document that a caller gives as XML text, as a path, as a `Schema` or `Prompt`, or as chat messages.

Text is XML if its first character is `<`, and a path otherwise. A document that is text can also be formatted, which
never changes its tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from promptcache.diagnostics import PATH, InvalidValue, LanguageError, SchemaError, shown, suggest
from promptcache.language.check import check_schema
from promptcache.language.checked import CHAT_SCHEMA
from promptcache.language.format.markup import read_markup
from promptcache.language.format.writer import write_markup
from promptcache.language.messages import ChatMessages
from promptcache.language.prompt import Prompt, parse_prompt
from promptcache.language.schema import Schema, parse_schema
from promptcache.language.syntax.files import Files, no_template
from promptcache.language.syntax.xml import parse_xml


def open_schema(source: str | os.PathLike[str] | Schema, context: Mapping[str, object] | None = None) -> Schema:
    """Return the schema from a `Schema`, XML text or a path; `context` is for templates.

    Raises:
        SchemaError: All faults with their places, or a context without a template.
        InvalidValue: `source` is neither a schema nor text nor a path.
    """
    if isinstance(source, Schema):
        if context is not None:
            raise SchemaError([no_template(source.span.source)])
        return source
    if is_markup(source):
        return parse_schema(source, context=context)
    return Schema.from_file(_path(source, "schema", 'Schema("name").module(…)'), context=context)


def open_prompt(source: str | os.PathLike[str] | Prompt | ChatMessages) -> Prompt:
    """Return the prompt from a `Prompt`, XML text, a path or chat messages. Messages are a prompt for `CHAT_SCHEMA`.

    Raises:
        PromptError: All faults with their places.
        InvalidValue: `source` is none of these, or a message is not supported.
    """
    if isinstance(source, Prompt):
        return source
    if isinstance(source, list | tuple):
        return Prompt.from_messages(CHAT_SCHEMA, source)
    if is_markup(source):
        return parse_prompt(source)
    return Prompt.from_file(_path(source, "prompt", 'Prompt("schema").user("…"), or a list of chat messages'))


def is_markup(source: object) -> TypeGuard[str]:
    """Return whether `source` is the text of a document; other text is a path."""
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")


def format_markup(text: str, *, is_prompt: bool) -> str:
    """Return the formatted text of a schema or prompt, which is not checked."""
    return write_markup(read_markup(text), is_prompt=is_prompt)


def format_document(
    text: str | bytes,
    *,
    source: str = "<document>",
    folder: Files | None = None,
    context: Mapping[str, object] | None = None,
) -> str:
    """Return the formatted text of a schema or prompt; every line ends with a newline.

    Args:
        text: The document; bytes must be UTF-8.
        source: Name of the document in diagnostics.
        folder: Folder of the files that the document names, as for `parse_schema`.
        context: Values for the templates that a schema includes, as for `parse_schema`.

    Raises:
        LanguageError: The document has faults; the error contains all of them. A prompt is checked as far as is
            possible without its schema.
    """
    root = parse_xml(text, source, LanguageError)
    is_prompt = suggest(root.name, ("schema", "prompt")) == "prompt"
    if is_prompt:
        parse_prompt(text, source=source, folder=folder)
    else:
        check_schema(parse_schema(text, source=source, folder=folder, context=context))
    return format_markup(root.source.text, is_prompt=is_prompt)


def _path(source: Any, what: str, built: str) -> Path:
    """Return `source` as a path: a file of this name exists, or it has the form of a path. Refuse other text."""
    if PATH.takes(source):
        text = os.fspath(source)
        looks_like_one = not any(map(str.isspace, text)) and ("." in text or "/" in text)
        is_path = os.path.isfile(text) or text.endswith((".xml", ".xml.j2")) or looks_like_one  # noqa: PTH113
        if isinstance(source, os.PathLike) or is_path:
            return Path(source)
    hint, first = "", source
    if isinstance(source, bytes | bytearray):
        hint = "; decode bytes first: source.decode()"
    elif isinstance(source, str):
        hint = "; there is no file with this name"
    elif isinstance(source, list | tuple):
        first = next(iter(source), None)
    if isinstance(first, Mapping) and "role" in first:
        messages = "Schema.from_messages(…)" if what == "schema" else "a list, also of one message"
        hint = f"; chat messages are given as {messages}"
    forms = f'a {what} is XML text (it starts with "<"), the path of a file, or {built}'
    raise InvalidValue(f"{shown(source)} is not a {what}: {forms}{hint}")
