"""Excerpts of diagnostics in colour.

Comes in: a diagnostic. Goes out: styled text. This file prints nothing.
"""

from __future__ import annotations

from rich.text import Text

from promptcache.diagnostics import Diagnostic, ExcerptPart, Severity, excerpt_pieces

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_STYLES = {
    ExcerptPart.MESSAGE: "bold",
    ExcerptPart.FRAME: "blue",
    ExcerptPart.PLAIN: "",
    ExcerptPart.RELATED_MARK: "bold blue",
    ExcerptPart.HELP: "green",
}


def diagnostic_text(diagnostic: Diagnostic) -> Text:
    """Return the excerpt of a diagnostic, one newline at the end of each line."""
    bold = f"bold {_COLOURS[diagnostic.severity]}"
    text = Text()
    for piece in excerpt_pieces(diagnostic):
        text.append(piece.text, style=_STYLES.get(piece.part, bold))
    return text
