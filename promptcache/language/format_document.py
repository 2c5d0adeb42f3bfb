"""Format a schema or prompt. Formatting never changes the tokens of a document."""

from __future__ import annotations

from collections.abc import Mapping

from promptcache.diagnostics import LanguageError, suggest
from promptcache.language.check import check_schema
from promptcache.language.format.markup import read_markup
from promptcache.language.format.writer import write_markup
from promptcache.language.prompt import parse_prompt
from promptcache.language.schema import parse_schema
from promptcache.language.syntax.files import Files
from promptcache.language.syntax.xml import parse_xml


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
