"""Documents whose name says that they are templates, and those that are read as they are.

Comes in: the text of a file and its name. Goes out: the text of a document. What a template may do is not known here;
Jinja2, which takes as long to load as all of the language, is loaded when there is a template.
"""

from __future__ import annotations

from collections.abc import Mapping

from promptcache.diagnostics import Diagnostic, InvalidValue, LanguageError, Span, instance
from promptcache.language.syntax.source import Source, decode

_SUFFIX = ".xml.j2"
_CONTEXT = instance("a mapping of names to plain data", Mapping) | None


def is_template(name: str) -> bool:
    """Whether a document is a template, which its name tells."""
    return name.endswith(_SUFFIX)


def open_document(
    data: str | bytes, name: str, context: Mapping[str, object] | None, error: type[LanguageError]
) -> Source:
    """Return the text of a document that was read; a template, as its name tells, is rendered with `context`.

    Raises:
        LanguageError: of the class `error`; it is too large or not UTF-8, or what `render_template` finds.
    """
    if is_template(name):
        _CONTEXT.check("context", context, InvalidValue)
        from promptcache.language.syntax.templates import render_template

        return render_template(data, context, name, error)
    return decode(data, name, error)


def no_template(name: str) -> Diagnostic:
    """Say that a context was given and nothing is there that could use it."""
    message = f"a context is for templates, whose names end in {_SUFFIX}"
    return Diagnostic(code="PC605", message=message, span=Span(name, 1, 1, 1, 1))
