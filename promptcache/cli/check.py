"""`promptcache check`: find mistakes in schemas and prompts.

It must start fast, so it imports neither rich nor a tokenizer until it needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from promptcache.cli.documents import (
    DocumentKind,
    InputDocument,
    Sources,
    checked_schema,
    documents_in,
    find_schema,
    parsed_prompt,
    read,
)
from promptcache.cli.exits import findings_code
from promptcache.cli.options import DOCUMENT, Output, context_option, model_option, schemas_option, with_json
from promptcache.cli.output import write_text
from promptcache.diagnostics import ContextLengthExceeded, Diagnostic, LanguageError, Severity, counted, diagnostic
from promptcache.language import CheckedSchema, Selection, resolve_prompt

if TYPE_CHECKING:
    from promptcache.cli.request import LaidOut, TokenLimits, WarmCost


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReport:
    """A document and its diagnostics.

    Attributes:
        file: As in its spans: the path as given, or "<stdin>".
        schema: For a prompt, the file of the schema that it was checked against.
        note: Why the check is not complete.
        warm: What `warm` encodes of a schema, if there is a model.
    """

    file: str
    kind: DocumentKind
    schema: str | None = None
    note: str | None = None
    warm: WarmCost | None = None
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All documents in the order in which they were read."""

    documents: tuple[DocumentReport, ...]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Diagnostics of all documents."""
        return tuple(diagnostic for document in self.documents for diagnostic in document.diagnostics)

    @property
    def num_errors(self) -> int:
        """Diagnostics that are errors."""
        return sum(diagnostic.severity is Severity.ERROR for diagnostic in self.diagnostics)

    @property
    def num_warnings(self) -> int:
        """Diagnostics that are warnings."""
        return len(self.diagnostics) - self.num_errors


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=DOCUMENT)
@schemas_option
@model_option("Also count tokens, with the tokenizer of this model: demo, a folder, or a hub id.", default=None)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@context_option
@with_json
def command(
    sources: Sources, files: tuple[str, ...], schema: tuple[str, ...], model: str | None, strict: bool
) -> Output:
    """Find mistakes in schemas and prompts, without loading a model.

    FILE is a schema or a prompt, or a folder: all *.xml and *.xml.j2 files in it and below; - is standard input.

    Example: promptcache check schemas/ prompts/ --strict
    """
    report = check_files(documents_in(files), schema, sources, model)
    failed = report.num_errors + strict * report.num_warnings > 0
    totals = {"num_errors": report.num_errors, "num_warnings": report.num_warnings}
    return Output(
        data={"documents": report.documents, **totals},
        text=partial(_print, report),
        code=findings_code(report.diagnostics, failed=failed),
    )


def check_files(
    files: Sequence[str], schema_files: Sequence[str], sources: Sources, model: str | None = None
) -> CheckReport:
    """Check the documents in `files` and `schema_files`, each once.

    A prompt is checked against a schema of `files`, otherwise of `schema_files`, otherwise one found near the prompt.

    Args:
        files: Schemas and prompts.
        schema_files: Files of --schema.
        sources: Records the documents.
        model: Also count tokens with the tokenizer of this model.

    Raises:
        ModelNotFound: There is no such model, or it has no tokenizer.json.
    """
    limits = None
    if model is not None:
        from promptcache.cli.request import TokenLimits

        limits = TokenLimits.of(model)
    checker = _Checker(sources, limits)
    given = checker.read(files)
    offered = checker.read([name for name in schema_files if name not in files])
    for document in (*given, *offered):
        if document.kind is DocumentKind.SCHEMA:
            checker.schema(document)
    for document in (*given, *offered):
        if document.kind is DocumentKind.PROMPT:
            checker.prompt(document, given, offered)
    return CheckReport(documents=tuple(report for report in checker.reports.values() if report is not None))


class _Checker:
    """Collects a report for each document, and remembers valid schemas."""

    def __init__(self, sources: Sources, limits: TokenLimits | None) -> None:
        self.reports: dict[str, DocumentReport | None] = {}  # in the order of reading
        self._sources = sources
        self._limits = limits
        self._schemas: dict[str, CheckedSchema | None] = {}
        self._layouts: dict[str, LaidOut] = {}

    def read(self, names: Sequence[str]) -> list[InputDocument]:
        """Read documents. Those that cannot be read get a report and are left out."""
        found = []
        for name in dict.fromkeys(names):
            try:
                found.append(read(name, self._sources))
                self.reports[found[-1].name] = None
            except LanguageError as error:
                self.reports[name] = DocumentReport(file=name, kind=DocumentKind.FILE, diagnostics=error.diagnostics)
        return found

    def schema(self, document: InputDocument) -> CheckedSchema | None:
        """Check a schema once; return it, or None if it has errors."""
        if document.name not in self._schemas:
            cost = None
            try:
                schema = checked_schema(document)
                diagnostics = schema.warnings
                if self._limits is not None:
                    layout = self._layouts[document.name] = self._limits.lay_out(schema)
                    diagnostics += layout[0].warnings
                    cost = self._limits.warm_cost(schema, layout[0])
            except ContextLengthExceeded as error:  # of a member; the layout is there
                diagnostics += (diagnostic("PC504", str(error), schema.source.span),)
            except LanguageError as error:
                schema, diagnostics = None, error.diagnostics
            self._schemas[document.name] = schema
            report = DocumentReport(file=document.name, kind=DocumentKind.SCHEMA, diagnostics=diagnostics, warm=cost)
            self.reports[document.name] = report
        return self._schemas[document.name]

    def prompt(self, document: InputDocument, given: Sequence[InputDocument], offered: Sequence[InputDocument]) -> None:
        """Check a prompt against its schema, or only its structure if there is no valid schema."""
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
                known = self.reports[found.name]
                told = known.diagnostics if known is not None else ()
                of_plan = self._check_length(resolve_prompt(prompt, schema), found)
                diagnostics += tuple(each for each in of_plan if each not in told)
        except LanguageError as error:
            diagnostics = (*error.diagnostics, *diagnostics)
        self.reports[document.name] = DocumentReport(
            file=document.name, kind=DocumentKind.PROMPT, diagnostics=diagnostics, schema=file, note=note
        )

    def _check_length(self, selection: Selection, schema: InputDocument) -> tuple[Diagnostic, ...]:
        """Plan a prompt with --model; return warnings, and a diagnostic if the model has too few positions."""
        if self._limits is None:
            return ()
        try:
            return self._limits.plan(selection, self._layouts[schema.name]).warnings
        except ContextLengthExceeded as error:
            return (diagnostic("PC504", str(error), selection.span),)


def _print(report: CheckReport) -> None:
    if report.diagnostics:
        from promptcache.cli.console import print_diagnostics

        print_diagnostics(report.diagnostics)
    notes = [f"note: {each.file}: {each.note}" for each in report.documents if each.note]
    notes += [f"{each.file}: warm encodes {each.warm} in {each.warm.dtype}" for each in report.documents if each.warm]
    write_text("".join(f"{line}\n" for line in (*notes, _summary(report))))


def _summary(report: CheckReport) -> str:
    kinds = Counter(document.kind for document in report.documents)
    unread = kinds.pop(DocumentKind.FILE, 0)
    parts = [f"{' and '.join(counted(number, kind) for kind, number in kinds.items())} checked"] if kinds else []
    parts += [f"{counted(unread, 'file')} not read"] if unread else []
    totals = [(report.num_errors, "error"), (report.num_warnings, "warning")]
    findings = [counted(number, noun) for number, noun in totals if number]
    return f"{', '.join(parts)}: {', '.join(findings) or 'no findings'}"
