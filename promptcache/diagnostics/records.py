"""Spans and diagnostics: the place of a finding, its code, its message and its help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Severity(StrEnum):
    """Severity of a diagnostic: an error stops the work, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


class SourceText(Protocol):
    """A source text with numbered lines."""

    def line(self, number: int) -> str | None:
        """Return line `number`, counted from 1, or None if there is no such line."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of a source text.

    Lines and columns count from 1, columns in characters (code points). `stop_line:stop_column` is the first place
    after the range. An object built in Python has no lines: all numbers are 0. `document` is the text, if known;
    comparisons ignore it.
    """

    source: str
    line: int
    column: int
    stop_line: int
    stop_column: int
    document: SourceText | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding: code, message, place, and the fix as `help`."""

    code: str
    message: str
    span: Span
    help: str
    severity: Severity
    related: tuple[tuple[Span, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.span}: {self.code} {self.message} ({self.help})"


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return diagnostics sorted by place; those of one place keep their order."""
    return tuple(sorted(diagnostics, key=lambda diagnostic: diagnostic.span))


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
