"""A document to the same document, laid out anew.

Comes in: a schema or a prompt as text. Goes out: its text with every block on a line of its own, indented by its depth,
with attributes in one order. Two laws: the tokens of a document never change, and formatting twice is formatting once.
Where a text block could not be moved without meaning something else, it stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from promptcache.diagnostics import LanguageError, suggest
from promptcache.language.check import check_schema
from promptcache.language.format.elements import PROMPT, SCHEMA, Surroundings, write_top
from promptcache.language.format.markup import read_markup
from promptcache.language.read_prompt import parse_prompt
from promptcache.language.schema import Whitespace, parse_schema
from promptcache.language.syntax.files import Files
from promptcache.language.syntax.source import decode
from promptcache.language.syntax.xml import parse_xml


def format_document(
    text: str | bytes,
    *,
    source: str = "<document>",
    folder: Files | None = None,
    context: Mapping[str, object] | None = None,
) -> str:
    """Return a schema or prompt laid out anew, its lines ended by newlines.

    Args:
        text: The document; bytes must be UTF-8.
        source: Its name in diagnostics.
        folder: Where the files lie that a schema names, as for `parse_schema`.
        context: What templates that a schema includes may use, as for `parse_schema`.

    Raises:
        LanguageError: every fault of the document. A prompt is checked as far as that goes without its schema.
    """
    root = parse_xml(text, source, LanguageError)
    if suggest(root.name, ("schema", "prompt")) == "prompt":
        dialect = PROMPT
        parse_prompt(text, source=source)
    else:
        dialect = SCHEMA
        check_schema(parse_schema(text, source=source, folder=folder, context=context))
    markup = read_markup(decode(text, source, LanguageError).text)
    return write_top(markup, Surroundings(dialect, Whitespace.DEDENT, ""))
