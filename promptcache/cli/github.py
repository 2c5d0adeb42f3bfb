"""A report as workflow commands of GitHub Actions, which shows them as annotations beside the lines.

Comes in: a report. Goes out: lines, as
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands has them.
"""

from __future__ import annotations

from collections.abc import Iterator

from promptcache.cli.report import Report
from promptcache.diagnostics import Diagnostic


def github_lines(report: Report) -> Iterator[str]:
    """Yield a command for every finding and every note."""
    for document in report.documents:
        for diagnostic in document.diagnostics:
            yield _command(diagnostic.severity, _message(diagnostic), {"title": diagnostic.code, **_place(diagnostic)})
        if document.note:
            yield _command("notice", document.note, {"file": document.name})


def _place(diagnostic: Diagnostic) -> dict[str, str | int]:
    """Say where a finding is; columns count within one line only, and the last is part of the span."""
    span = diagnostic.span
    place: dict[str, str | int] = {"file": span.source, "line": span.line, "endLine": span.stop_line}
    if span.line == span.stop_line:
        place |= {"col": span.column, "endColumn": max(span.column, span.stop_column - 1)}
    return place


def _message(diagnostic: Diagnostic) -> str:
    related = [f"{span} {words}" for span, words in diagnostic.related]
    return "\n".join([diagnostic.message, *([diagnostic.help] if diagnostic.help else []), *related])


def _command(kind: str, message: str, properties: dict[str, str | int]) -> str:
    written = ",".join(f"{name}={_escaped(str(value), ',:')}" for name, value in properties.items())
    return f"::{kind} {written}::{_escaped(message, '')}"


def _escaped(text: str, separators: str) -> str:
    """Write a text so that it cannot end its command or begin another."""
    for character in f"%\r\n{separators}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
