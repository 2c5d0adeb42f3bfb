"""`promptcache check`: find mistakes in schemas and prompts.

It must start fast, so it imports neither rich nor a tokenizer until it needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
from promptcache.language import CheckedSchema, resolve_prompt

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
    reports = check_files(documents_in(files), schema, sources, model)
    diagnostics = [each for report in reports for each in report.diagnostics]
    num_errors = sum(each.severity is Severity.ERROR for each in diagnostics)
    num_warnings = len(diagnostics) - num_errors

    def show() -> None:
        if diagnostics:
            from promptcache.cli.console import print_diagnostics

            print_diagnostics(diagnostics)
        lines = [f"note: {each.file}: {each.note}" for each in reports if each.note]
        lines += [f"{each.file}: warm encodes {each.warm} in {each.warm.dtype}" for each in reports if each.warm]
        kinds = Counter(each.kind for each in reports)
        unread = kinds.pop(DocumentKind.FILE, 0)
        parts = [f"{' and '.join(counted(number, kind) for kind, number in kinds.items())} checked"] if kinds else []
        parts += [f"{counted(unread, 'file')} not read"] if unread else []
        totals = ((num_errors, "error"), (num_warnings, "warning"))
        findings = ", ".join(counted(number, noun) for number, noun in totals if number) or "no findings"
        write_text("".join(f"{line}\n" for line in (*lines, f"{', '.join(parts)}: {findings}")))

    return Output(
        data={"documents": reports, "num_errors": num_errors, "num_warnings": num_warnings},
        text=show,
        code=findings_code(diagnostics, failed=num_errors + strict * num_warnings > 0),
    )


def check_files(
    files: Sequence[str], schema_files: Sequence[str], sources: Sources, model: str | None = None
) -> tuple[DocumentReport, ...]:
    """Check the documents in `files` and `schema_files`, each once, and report them in the order of reading.

    A prompt is checked against a schema of `files`, otherwise of `schema_files`, otherwise one found near the prompt.
    With a model, its tokenizer counts tokens, too.

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
    return tuple(report for report in checker.reports.values() if report is not None)


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
                selection = resolve_prompt(prompt, schema)
                if self._limits is not None:
                    try:
                        of_plan = self._limits.plan(selection, self._layouts[found.name]).warnings
                    except ContextLengthExceeded as error:
                        of_plan = (diagnostic("PC504", str(error), selection.span),)
                    diagnostics += tuple(each for each in of_plan if each not in told)
        except LanguageError as error:
            diagnostics = (*error.diagnostics, *diagnostics)
        self.reports[document.name] = DocumentReport(
            file=document.name, kind=DocumentKind.PROMPT, diagnostics=diagnostics, schema=file, note=note
        )
