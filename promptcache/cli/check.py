"""Checking documents: schemas on their own, prompts against their schemas.

Comes in: file names. Goes out: a `Report`. This file loads no model, a tokenizer only where one is named, and prints
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from promptcache.cli.exits import UNREADABLE, ExitCode
from promptcache.cli.files import Document, checked_schema, find_schema, parsed_prompt, read
from promptcache.cli.report import DocumentReport, Kind, Report
from promptcache.cli.sources import Sources
from promptcache.diagnostics import ContextLengthExceeded, Diagnostic, LanguageError
from promptcache.language import CheckedSchema, Selection, resolve_prompt

if TYPE_CHECKING:
    from promptcache.cli.request import TokenLimits
    from promptcache.layout import Layout


def check_files(
    files: Sequence[str], schema_files: Sequence[str], sources: Sources, model: str | None = None
) -> Report:
    """Check the documents in `files` and `schema_files`, each once.

    A prompt is checked against a schema among `files`, else among `schema_files`, else one found near it.

    Args:
        model: Also count tokens as its tokenizer does: what passes can be added to an engine and planned by it.

    Raises:
        ModelNotFound: There is no such model, or it has no tokenizer.json.
    """
    checker = _Checker(sources, None if model is None else _limits(model))
    given = checker.read(files)
    offered = checker.read([name for name in schema_files if name not in files])
    for document in (*given, *offered):
        if document.kind is Kind.SCHEMA:
            checker.schema(document)
    for document in (*given, *offered):
        if document.kind is Kind.PROMPT:
            checker.prompt(document, given, offered)
    return Report(documents=tuple(report for report in checker.reports.values() if report is not None))


def _limits(model: str) -> TokenLimits:
    from promptcache.cli.request import TokenLimits
    from promptcache.tokenizer import model_folder

    return TokenLimits.of(model_folder(model))


def report_code(report: Report, *, strict: bool = False) -> ExitCode:
    """Return how a check ends: warnings count if it is strict, a file that cannot be read outweighs all."""
    if any(diagnostic.code == UNREADABLE for diagnostic in report.diagnostics):
        return ExitCode.ENVIRONMENT
    findings = report.num_errors + (report.num_warnings if strict else 0)
    return ExitCode.FINDINGS if findings else ExitCode.OK


class _Checker:
    """Collects a report for every document, and remembers the schemas that can be used."""

    def __init__(self, sources: Sources, limits: TokenLimits | None) -> None:
        self.reports: dict[str, DocumentReport | None] = {}  # in the order in which the documents were read
        self._sources = sources
        self._limits = limits
        self._schemas: dict[str, CheckedSchema | None] = {}
        self._layouts: dict[str, Layout] = {}

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
                if self._limits is not None:
                    layout = self._layouts[document.name] = self._limits.lay_out(schema)
                    diagnostics += layout.warnings
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
            diagnostics = prompt.warnings
            found = find_schema(prompt, document, given, offered, self._sources)
            schema = self.schema(found)
            if schema is None:
                note = f"schema {found.name} has errors, so only the structure was checked"
            else:
                file = found.name
                diagnostics += self._fitting(resolve_prompt(prompt, schema), found)
        except LanguageError as error:
            diagnostics = (*diagnostics, *error.diagnostics)
        self.reports[document.name] = DocumentReport(
            name=document.name, kind=Kind.PROMPT, diagnostics=diagnostics, schema=file, note=note
        )

    def _fitting(self, selection: Selection, schema: Document) -> tuple[Diagnostic, ...]:
        """Plan a prompt where tokens are counted; return that the model has too few positions for it, if so."""
        if self._limits is None:
            return ()
        try:
            self._limits.plan(selection, self._layouts[schema.name])
        except ContextLengthExceeded as error:
            return (Diagnostic(code="PC504", message=str(error), span=selection.span),)
        return ()
