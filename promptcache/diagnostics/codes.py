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
from promptcache.diagnostics.words import plain_text

TABLE = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
"""The table as Markdown: a heading of level 2 for each group, and one of level 3 for each code."""

_HEADING = re.compile(r"^(?:## (.+)|### (PC\d{3}) (.+?)( \(warning\))?)$", re.MULTILINE)
_FIX = re.compile(r"^\*\*Fix\.\*\* (.+?)\.(?:\s|$)", re.MULTILINE | re.DOTALL)


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
