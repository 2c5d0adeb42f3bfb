"""One argument for every way to hand over a document: XML text, a path, or the tree itself.

Comes in: what a caller of the engine has. Goes out: a `Schema` or a `Prompt`. Text is told from a path by its first
character.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

from promptcache.diagnostics import SchemaError
from promptcache.language.prompt import Prompt
from promptcache.language.read_prompt import load_prompt, parse_prompt
from promptcache.language.schema import Schema, parse_schema
from promptcache.language.template_files import no_template


def open_schema(source: str | Path | Schema, context: Mapping[str, object] | None = None) -> Schema:
    """Return the schema that `source` is, holds as XML text, or leads to; `context` is for templates.

    Raises:
        SchemaError: Every fault with its place, or a context that no template is there for.
    """
    if isinstance(source, Schema):
        if context is not None:
            raise SchemaError([no_template(source.span.source)])
        return source
    return parse_schema(source, context=context) if is_markup(source) else Schema.from_file(source, context=context)


def open_prompt(source: str | Path | Prompt) -> Prompt:
    """Return the prompt that `source` is, holds as XML text, or leads to.

    Raises:
        PromptError: Every fault with its place.
    """
    if isinstance(source, Prompt):
        return source
    return parse_prompt(source) if is_markup(source) else load_prompt(Path(source))


def is_markup(source: object) -> TypeGuard[str]:
    """Return whether `source` is the text of a document, and not a path to one."""
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")
