"""Functions that write lines, diagnostics and JSON. Data go to stdout, everything else to stderr.

This file does not import rich: `check` on a valid document must start fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from promptcache.diagnostics import Diagnostic, Span

_CONTROL = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_REPLACED = {code: "\N{REPLACEMENT CHARACTER}" for code in _CONTROL if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """Replace control characters and changes of direction: a document or answer must not control the terminal."""
    return text.translate(_REPLACED)


def tell(*lines: str) -> None:
    """Write lines to stderr."""
    sys.stderr.write("".join(f"{harmless(line)}\n" for line in lines))
    sys.stderr.flush()


def write_text(text: str) -> None:
    """Write data to stdout at once: exactly on a pipe, without control characters on a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(data: object) -> None:
    """Write one JSON value to stdout, indented."""
    write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def print_diagnostics(diagnostics: Sequence[Diagnostic], *, beside: bool = False) -> None:
    """Print diagnostics with their source lines to stdout, or with `beside` to stderr."""
    if not diagnostics:
        return
    from promptcache.cli.console import diagnostic_text, stderr, stdout

    sys.stdout.flush()
    console = stderr() if beside else stdout()
    for diagnostic in diagnostics:
        console.print(diagnostic_text(diagnostic), soft_wrap=True)


def as_data(diagnostic: Diagnostic) -> dict[str, Any]:
    """Return a diagnostic as data. Lines and columns count from 1; the stop is the first place after the span."""
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "help": diagnostic.help,
        **_place(diagnostic.span),
        "related": [{"message": message, **_place(span)} for span, message in diagnostic.related],
    }


def _place(span: Span) -> dict[str, Any]:
    return {
        "file": span.source,
        "line": span.line,
        "column": span.column,
        "stop_line": span.stop_line,
        "stop_column": span.stop_column,
    }
