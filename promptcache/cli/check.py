"""Checking documents: schemas on their own, prompts against their schemas.

Comes in: file names. Goes out: a `Report`. This file loads no model and no tokenizer, and prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcache.cli.exits import UNREADABLE, ExitCode
from promptcache.cli.files import Document, checked_schema, find_schema, parsed_prompt, read
from promptcache.cli.report import DocumentReport, Kind, Report
from promptcache.cli.sources import Sources
from promptcache.diagnostics import Diagnostic, LanguageError, UnknownSchema
from promptcache.language import CheckedSchema, resolve_prompt


def check_files(files: Sequence[str], schema_files: Sequence[str], sources: Sources) -> Report:
    """Check the documents in `files` and `schema_files`, each once.

    A prompt is checked against a schema among `files`, else among `schema_files`, else one found near it; without any,
    only its structure is.
    """
    checker = _Checker(sources)
    given = checker.read(files)
    offered = checker.read([name for name in schema_files if name not in files])
    for document in (*given, *offered):
        if document.kind is Kind.SCHEMA:
            checker.schema(document)
    for document in (*given, *offered):
        if document.kind is Kind.PROMPT:
            checker.prompt(document, given, offered)
    return Report(documents=tuple(report for report in checker.reports.values() if report is not None))


def report_code(report: Report) -> ExitCode:
    """Return how a check ends: warnings alone are no findings, a file that cannot be read outweighs all."""
    if any(diagnostic.code == UNREADABLE for diagnostic in report.diagnostics):
        return ExitCode.ENVIRONMENT
    return ExitCode.FINDINGS if report.num_errors else ExitCode.OK


class _Checker:
    """Collects a report for every document, and remembers the schemas that can be used."""

    def __init__(self, sources: Sources) -> None:
        self.reports: dict[str, DocumentReport | None] = {}  # in the order in which the documents were read
        self._sources = sources
        self._schemas: dict[str, CheckedSchema | None] = {}

    def read(self, names: Sequence[str]) -> list[Document]:
        """Read documents; what cannot be read is reported and left out."""
        found = []
        for name in dict.fromkeys(names):
            try:
                found.append(read(name, self._sources))
                self.reports[found[-1].name] = None
            except LanguageError as error:
                self.reports[name] = DocumentReport(name=name, kind=Kind.FILE, diagnostics=error.diagnostics)
        return found

    def schema(self, document: Document) -> CheckedSchema | None:
        """Check a schema, once; return it if prompts can be checked against it."""
        if document.name not in self._schemas:
            try:
                schema = checked_schema(document)
                diagnostics = schema.warnings
            except LanguageError as error:
                schema, diagnostics = None, error.diagnostics
            self._schemas[document.name] = schema
            report = DocumentReport(name=document.name, kind=Kind.SCHEMA, diagnostics=diagnostics)
            self.reports[document.name] = report
        return self._schemas[document.name]

    def prompt(self, document: Document, given: Sequence[Document], offered: Sequence[Document]) -> None:
        """Check a prompt against its schema, or as far as that goes without one."""
        diagnostics: tuple[Diagnostic, ...] = ()
        file = note = None
        try:
            prompt = parsed_prompt(document)
            found = find_schema(prompt.schema, document, given, offered, self._sources)
            schema = self.schema(found)
            if schema is None:
                note = f"schema {found.name} has errors, so only the structure was checked"
            else:
                file = found.name
                resolve_prompt(prompt, schema)
        except LanguageError as error:
            diagnostics = error.diagnostics
        except UnknownSchema as error:
            note = f"{error}; only the structure was checked"
        self.reports[document.name] = DocumentReport(
            name=document.name, kind=Kind.PROMPT, diagnostics=diagnostics, schema=file, note=note
        )
