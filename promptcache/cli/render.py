"""Findings in the forms that people and programs read them.

Comes in: diagnostics and reports. Goes out: text on a console, or plain data for JSON. A further form is one more
function of a `Report`, which has everything that was found. This file does not know how findings are made.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from promptcache.cli.excerpt import diagnostic_text
from promptcache.cli.report import Kind, Report
from promptcache.cli.sources import Sources
from promptcache.diagnostics import Diagnostic, Span

_UNBOUNDED = 1 << 16  # columns: what is piped is wrapped by nobody


class _Console(Console):
    """A console that leaves a closed pipe to whoever ends the command; rich would exit by itself."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stdout() -> Console:
    """Return a console for data; colours only on a terminal, never with NO_COLOR."""
    return _Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _UNBOUNDED)


def stderr() -> Console:
    """Return a console for everything that is not data."""
    return _Console(file=sys.stderr, highlight=False)


def print_diagnostics(diagnostics: Iterable[Diagnostic], sources: Sources, console: Console) -> None:
    """Print diagnostics with their source lines, an empty line after each."""
    for diagnostic in diagnostics:
        console.print(diagnostic_text(diagnostic, sources), soft_wrap=True)


def print_notes(notes: Iterable[str], console: Console) -> None:
    """Print what is worth knowing but stands nowhere in a document."""
    for note in notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def print_report(report: Report, sources: Sources, console: Console) -> None:
    """Print every finding of a report, its notes, and one line that sums it up."""
    print_diagnostics(report.diagnostics, sources, console)
    print_notes((f"{each.name}: {each.note}" for each in report.documents if each.note), console)
    console.print(_summary(report), markup=False, soft_wrap=True)


def report_data(report: Report) -> dict[str, Any]:
    """Return a report as data: for each document its findings, then the totals."""
    return {
        "documents": [
            {
                "file": document.name,
                "kind": document.kind,
                "schema": document.schema,
                "note": document.note,
                "diagnostics": [as_data(each) for each in document.diagnostics],
            }
            for document in report.documents
        ],
        "num_errors": report.num_errors,
        "num_warnings": report.num_warnings,
    }


def write_json(data: object) -> None:
    """Write one JSON value to stdout, indented for people."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def write_text(piece: str) -> None:
    """Write a piece of an answer to stdout, at once."""
    sys.stdout.write(piece)
    sys.stdout.flush()


def as_data(diagnostic: Diagnostic) -> dict[str, Any]:
    """Return a diagnostic as data; lines and columns count from 1, the stop is the first place after it."""
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "help": diagnostic.help,
        **_place(diagnostic.span),
        "related": [{"message": words, **_place(span)} for span, words in diagnostic.related],
    }


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 file", "2 files"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _place(span: Span) -> dict[str, Any]:
    return {
        "file": span.source,
        "line": span.line,
        "column": span.column,
        "stop_line": span.stop_line,
        "stop_column": span.stop_column,
    }


def _summary(report: Report) -> str:
    kinds = Counter(document.kind for document in report.documents)
    unread = kinds.pop(Kind.FILE, 0)
    parts = [f"{' and '.join(counted(number, kind) for kind, number in kinds.items())} checked"] if kinds else []
    parts += [f"{counted(unread, 'file')} not read"] if unread else []
    found = [(report.num_errors, "error"), (report.num_warnings, "warning")]
    findings = [counted(number, noun) for number, noun in found if number]
    return f"{', '.join(parts)}: {', '.join(findings) or 'no findings'}"
