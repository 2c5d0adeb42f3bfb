"""The records of what was found: where it stands, what is wrong, and how to mend it.

Comes in: facts about a fault. Goes out: spans and diagnostics. This file raises nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Severity(StrEnum):
    """How much a diagnostic matters: an error stops the work, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


class Document(Protocol):
    """A text whose lines can be shown."""

    def line(self, number: int) -> str | None:
        """Return line `number`, counted from 1, or None where there is no such line."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open stretch of a source text.

    Lines and columns count from 1, columns in characters (code points); `stop_line:stop_column` is the first place
    after it. What was built in Python has no lines: `source` says where it is, and all numbers are 0. `document` is the
    text, where it is known; it takes no part in comparisons.
    """

    source: str
    line: int
    column: int
    stop_line: int
    stop_column: int
    document: Document | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding: its code, where it stands, what is wrong, and how to mend it."""

    code: str
    message: str
    span: Span
    help: str | None = None
    severity: Severity = Severity.ERROR
    related: tuple[tuple[Span, str], ...] = ()

    def __str__(self) -> str:
        mend = f" ({self.help})" if self.help else ""
        return f"{self.span}: {self.code} {self.message}{mend}"


def in_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return diagnostics by their places; those of one place stay in the order in which they came."""
    return tuple(sorted(diagnostics, key=lambda diagnostic: diagnostic.span))
