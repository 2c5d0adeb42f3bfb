"""Open a document that a caller gives as XML text, as a path, as a `Schema` or `Prompt`, or as chat messages.

Text is XML if its first character is `<`, and a path otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from promptcache.diagnostics import PATH, InvalidValue, SchemaError, shown
from promptcache.language.checked import CHAT_SCHEMA
from promptcache.language.messages import ChatMessages
from promptcache.language.prompt import Prompt, parse_prompt
from promptcache.language.schema import Schema, parse_schema
from promptcache.language.syntax.files import no_template

_SUFFIXES = (".xml", ".xml.j2")


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
    if are_messages(source):
        return Prompt.from_messages(CHAT_SCHEMA, source)
    if is_markup(source):
        return parse_prompt(source)
    return Prompt.from_file(_path(source, "prompt", 'Prompt("schema").user("…"), or a list of chat messages'))


def are_messages(source: object) -> TypeGuard[ChatMessages]:
    """Return whether `source` is a list, which can only be one of chat messages."""
    return isinstance(source, list | tuple)


def is_markup(source: object) -> TypeGuard[str]:
    """Return whether `source` is the text of a document; other text is a path."""
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")


def _path(source: Any, what: str, built: str) -> Path:
    """Return `source` as a path; refuse text that is not one."""
    if PATH.takes(source) and (isinstance(source, os.PathLike) or _is_path(str(source))):
        return Path(source)
    forms = f'a {what} is XML text (it starts with "<"), the path of a file, or {built}'
    raise InvalidValue(f"{shown(source)} is not a {what}: {forms}{_hint(source, what)}")


def _is_path(text: str) -> bool:
    """Return whether text is a path: a file of this name exists, or the text has the form of a path."""
    one_word = not any(character.isspace() for character in text)
    return os.path.isfile(text) or text.endswith(_SUFFIXES) or (one_word and ("." in text or "/" in text))  # noqa: PTH113


def _hint(source: object, what: str) -> str:
    if isinstance(source, bytes | bytearray):
        return "; decode bytes first: source.decode()"
    if isinstance(source, str):
        return "; there is no file with this name"
    first = next(iter(source), None) if isinstance(source, list | tuple) else source
    if isinstance(first, Mapping) and "role" in first:
        messages = "Schema.from_messages(…)" if what == "schema" else "a list, also of one message"
        return f"; chat messages are given as {messages}"
    return ""
