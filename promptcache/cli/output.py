"""What commands write: lines, findings, JSON.

Comes in: words, diagnostics and reports. Goes out: data on stdout, everything else on stderr. This file does not know
how findings are made, and loads no rich before there is a finding to be coloured.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from promptcache.cli.report import Kind, Report
from promptcache.diagnostics import Diagnostic, Span

_STEERING = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS = {code: "\N{REPLACEMENT CHARACTER}" for code in _STEERING if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """Replace what could steer a terminal or turn its lines around: documents and answers may come from anyone."""
    return text.translate(_HARMLESS)


def tell(*lines: str) -> None:
    """Write lines that are not data to stderr."""
    sys.stderr.write("".join(f"{harmless(line)}\n" for line in lines))
    sys.stderr.flush()


def print_diagnostics(diagnostics: Sequence[Diagnostic], *, beside: bool = False) -> None:
    """Print diagnostics with their source lines, an empty line after each: as data, or beside it on stderr."""
    if not diagnostics:
        return
    from promptcache.cli.console import stderr, stdout
    from promptcache.cli.excerpt import diagnostic_text

    sys.stdout.flush()
    console = stderr() if beside else stdout()
    for diagnostic in diagnostics:
        console.print(diagnostic_text(diagnostic), soft_wrap=True)


def print_report(report: Report) -> None:
    """Print every finding of a report, its notes, and one line that sums it up."""
    print_diagnostics(report.diagnostics)
    notes = [f"note: {each.name}: {each.note}" for each in report.documents if each.note]
    write_text("".join(f"{line}\n" for line in (*notes, _summary(report))))


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
    write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def write_text(piece: str) -> None:
    """Write a piece of data to stdout, at once: exactly on a pipe, without what could steer it on a terminal."""
    sys.stdout.write(harmless(piece) if sys.stdout.isatty() else piece)
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
