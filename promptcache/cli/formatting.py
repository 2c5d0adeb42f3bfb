"""Formatting documents: reading, writing back, and showing what changed.

Comes in: file names. Goes out: what became of each, and files on disk. A file with errors is never touched; one that
changes is replaced as a whole, and keeps its mode, its line ends and its byte order mark. How a document is laid out is
not known here.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from promptcache.cli.exits import UNREADABLE, ExitCode, UsageMistake, told_by_system
from promptcache.cli.files import Document, read
from promptcache.cli.output import as_data, print_diagnostics, tell, write_text
from promptcache.cli.report import Kind
from promptcache.cli.sources import Sources
from promptcache.cli.written import replace_file
from promptcache.diagnostics import Diagnostic, LanguageError
from promptcache.language.format.formatter import format_document
from promptcache.language.read_schema import read_schema

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatted:
    """What became of one document.

    Attributes:
        before, after: Its text, the same where it has errors or could not be written.
        fault: Why it could not be written; None where it was, or did not have to be.
    """

    name: str
    path: Path | None = None
    before: str = ""
    after: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    fault: str | None = None

    @property
    def changed(self) -> bool:
        """Whether it was, or would be, written differently."""
        return self.before != self.after


def format_files(names: Sequence[str], sources: Sources, *, write: bool) -> list[Formatted]:
    """Format documents, each once; those that change are written back where `write` says so.

    All are read before the first is written. One that cannot be written hinders none of the others.

    Raises:
        UsageMistake: one is a template, which is no document before it is rendered.
        ContextMistake: there are values for templates, and no document includes one.
    """
    for name in names:
        if name.endswith(".j2"):
            raise UsageMistake(f"{name} is a template: only the documents that it renders can be formatted")
    found = [_format(name, sources) for name in dict.fromkeys(names)]
    if not any(each.diagnostics for each in found):
        sources.check_context()
    return [_written(each) for each in found] if write else found


def formatted_code(found: Sequence[Formatted], *, only_check: bool) -> ExitCode:
    """Return how the command ends."""
    diagnostics = [diagnostic for each in found for diagnostic in each.diagnostics]
    if any(each.fault for each in found) or any(each.code == UNREADABLE for each in diagnostics):
        return ExitCode.ENVIRONMENT
    if diagnostics or (only_check and any(each.changed for each in found)):
        return ExitCode.FINDINGS
    return ExitCode.OK


def formatted_data(found: Sequence[Formatted]) -> dict[str, Any]:
    """Return what became of each document as data; standard input comes with its new text."""
    documents = []
    for each in found:
        data = {"file": each.name, "changed": each.changed, "diagnostics": [as_data(item) for item in each.diagnostics]}
        data |= {} if each.fault is None else {"error": each.fault}
        documents.append(data if each.path else {**data, "text": each.after})
    return {"documents": documents}


def print_formatted(found: Sequence[Formatted], *, only_check: bool, as_diff: bool) -> None:
    """Print findings, then differences or the new text of standard input, then one line for each file that changes."""
    for each in found:
        print_diagnostics(each.diagnostics, beside=True)
        if as_diff and each.changed:
            write_text(_difference(each))
        elif each.path is None and not only_check and not as_diff and not each.diagnostics:
            write_text(each.after)
        if each.changed and (only_check or as_diff or each.path is not None):
            verb = "would be formatted" if only_check or as_diff else "formatted"
            tell(f"{each.name}: {verb}")
        if each.fault is not None:
            tell(f"error: {each.fault}")


def _format(name: str, sources: Sources) -> Formatted:
    try:
        document = read(name, sources)
        folder = document.path.parent if document.path is not None else None
        context = _context_for(document, folder)
        after = format_document(document.data, source=document.name, folder=folder, context=context)
    except LanguageError as error:
        return Formatted(name=name, path=Path(name), diagnostics=error.diagnostics)
    before = document.data.decode()
    return Formatted(name=document.name, path=document.path, before=before, after=_as_written(after, document))


def _written(each: Formatted) -> Formatted:
    """Write a document back if it changed; one that cannot be written is as it was, and says why."""
    if not each.changed or each.path is None:
        return each
    try:
        replace_file(each.path, each.after.encode())
    except OSError as error:
        return replace(each, after=each.before, fault=told_by_system(error))
    return each


def _context_for(document: Document, folder: Path | None) -> Mapping[str, object] | None:
    """Return what `--context` gives the templates that a schema includes; None where there are none."""
    if document.context is None or document.kind is Kind.PROMPT:
        return None
    values = document.context.values
    has_templates = read_schema(document.data, source=document.name, folder=folder, context=values).rendered
    document.context.used |= has_templates
    return values if has_templates else None


def _as_written(text: str, document: Document) -> str:
    """Return a text with the line ends and the byte order mark that its document has."""
    if b"\r\n" in document.data:
        text = text.replace("\n", "\r\n")
    if document.data.startswith(codecs.BOM_UTF8):
        text = codecs.BOM_UTF8.decode() + text
    return text


def _difference(each: Formatted) -> str:
    before, after = _LINE.findall(each.before), _LINE.findall(each.after)
    lines = difflib.unified_diff(before, after, each.name, f"{each.name} (formatted)")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
