"""Excerpts of diagnostics in colour.

Comes in: a diagnostic. Goes out: styled text. This file prints nothing.
"""

from __future__ import annotations

from rich.text import Text

from promptcache.diagnostics import Diagnostic, Part, Severity, excerpt_pieces

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_STYLES = {
    Part.MESSAGE: "bold",
    Part.FRAME: "blue",
    Part.PLAIN: "",
    Part.RELATED_MARK: "bold blue",
    Part.HELP: "green",
}


def diagnostic_text(diagnostic: Diagnostic) -> Text:
    """Return the excerpt of a diagnostic, one newline at the end of each line."""
    bold = f"bold {_COLOURS[diagnostic.severity]}"
    text = Text()
    for piece in excerpt_pieces(diagnostic):
        text.append(piece.text, style=_STYLES.get(piece.part, bold))
    return text
