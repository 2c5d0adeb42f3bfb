"""The table of diagnostic codes: codes.md, with the title, the severity and the explanation of each code.

A code is never reused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from promptcache.diagnostics.records import Diagnostic, Severity, Span

TABLE = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
"""The table as Markdown: a heading of level 2 for each group, and one of level 3 for each code."""

_HEADING = re.compile(r"^(?:## (.+)|### (PC\d{3}) (.+?)( \(warning\))?)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A diagnostic code.

    Attributes:
        group: The heading above the code.
        text: What the code means, examples and the fix, in Markdown.
    """

    code: str
    title: str
    severity: Severity
    group: str
    text: str


def _codes() -> Iterator[Code]:
    group = ""
    _, *pieces = _HEADING.split(TABLE)
    for heading, code, title, warning, text in zip(*(pieces[start::5] for start in range(5)), strict=True):
        if heading:
            group = heading
        else:
            severity = Severity.WARNING if warning else Severity.ERROR
            yield Code(code=code, title=title, severity=severity, group=group, text=text.strip())


CODES: Mapping[str, Code] = MappingProxyType({each.code: each for each in _codes()})


def diagnostic(
    code: str, message: str, span: Span, fix: str | None = None, related: tuple[tuple[Span, str], ...] = ()
) -> Diagnostic:
    """Return a diagnostic with the severity of its code; `fix` is its help."""
    severity = CODES[code].severity
    return Diagnostic(code=code, message=message, span=span, help=fix, severity=severity, related=related)
