"""Diagnostics: the place of a finding, its code, its message and its help, and the table of codes.

The table is codes.md, with the title, the severity and the explanation of each code. A code is never reused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from promptcache.diagnostics.words import plain_text

TABLE = Path(__file__).with_name("codes.md").read_text(encoding="utf-8")
"""The table as Markdown: a heading of level 2 for each group, and one of level 3 for each code."""

_HEADING = re.compile(r"^(?:## (.+)|### (PC\d{3}) (.+?)( \(warning\))?)$", re.MULTILINE)
_FIX = re.compile(r"^\*\*Fix\.\*\* (.+?)\.(?:\s|$)", re.MULTILINE | re.DOTALL)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A diagnostic code.

    Attributes:
        group: The heading above the code.
        text: What the code means, examples and the fix, in Markdown.
        fix: The first sentence of the fix as plain text, for a finding without a better one.
    """

    code: str
    title: str
    severity: Severity
    group: str
    text: str
    fix: str


def _codes() -> Iterator[Code]:
    group = ""
    _, *pieces = _HEADING.split(TABLE)
    for heading, code, title, warning, text in zip(*(pieces[start::5] for start in range(5)), strict=True):
        if heading:
            group = heading
        else:
            severity = Severity.WARNING if warning else Severity.ERROR
            fix = " ".join(plain_text(_FIX.findall(text)[0]).split())
            fix = fix[0].lower() + fix[1:]
            yield Code(code=code, title=title, severity=severity, group=group, text=text.strip(), fix=fix)


CODES: Mapping[str, Code] = MappingProxyType({each.code: each for each in _codes()})


def diagnostic(
    code: str, message: str, span: Span, fix: str | None = None, related: tuple[tuple[Span, str], ...] = ()
) -> Diagnostic:
    """Return a diagnostic with the severity of its code; `fix` is its help, by default that of the code."""
    found = CODES[code]
    return Diagnostic(
        code=code, message=message, span=span, help=fix or found.fix, severity=found.severity, related=related
    )


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
