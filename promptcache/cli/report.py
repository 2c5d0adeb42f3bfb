"""What a check found: one record per document, in the order in which they were given.

Comes in: nothing; `check` builds these. Goes out: to every form in which findings are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from promptcache.diagnostics import Diagnostic, Severity


class Kind(StrEnum):
    """What a file is, told by its root element; one that cannot be read is just a file."""

    SCHEMA = "schema"
    PROMPT = "prompt"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReport:
    """One document and what was found in it.

    Attributes:
        name: As in its spans: the path that was given, "<stdin>" for standard input.
        schema: For a prompt, the file of the schema it was checked against, or None where none could be.
        note: What kept the check from being complete.
    """

    name: str
    kind: Kind
    diagnostics: tuple[Diagnostic, ...]
    schema: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that one check found."""

    documents: tuple[DocumentReport, ...]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All findings, document by document."""
        return tuple(diagnostic for document in self.documents for diagnostic in document.diagnostics)

    @property
    def num_errors(self) -> int:
        """Findings that stop the work."""
        return sum(diagnostic.severity is Severity.ERROR for diagnostic in self.diagnostics)

    @property
    def num_warnings(self) -> int:
        """Findings that do not."""
        return len(self.diagnostics) - self.num_errors
