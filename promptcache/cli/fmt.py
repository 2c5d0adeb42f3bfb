"""`promptcache fmt`: format schemas and prompts in place.

A file with errors is not changed. A file that changes is replaced atomically and keeps its mode, line ends and byte
order mark.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from promptcache.cli.documents import DocumentKind, InputDocument, Sources, read, replace_file, source_name
from promptcache.cli.exits import ExitCode, UsageMistake, findings_code, system_message
from promptcache.cli.options import DOCUMENT, Output, context_option, with_json
from promptcache.cli.output import tell, write_text
from promptcache.diagnostics import Diagnostic, LanguageError
from promptcache.language import format_document, read_schema

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatted:
    """A document before and after formatting.

    Attributes:
        before, after: The same text if the document has errors or could not be written.
        fault: Why the file could not be written.
    """

    name: str
    path: Path | None = None
    before: str = ""
    after: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    fault: str | None = None

    @property
    def changed(self) -> bool:
        """Whether the text is different."""
        return self.before != self.after


@click.command("fmt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=DOCUMENT)
@click.option("--check", is_flag=True, help="Write nothing; show what would change, and exit with 1 if anything does.")
@context_option
@with_json
def command(sources: Sources, files: tuple[str, ...], check: bool) -> Output:
    """Format schemas and prompts; their tokens never change.

    FILE is a schema or a prompt; - is standard input, which is written to stdout.
    """
    found = format_files(files, sources, write=not check)
    show = partial(_print, found, only_check=check)
    return Output(data=_data(found), text=show, code=_code(found, only_check=check))


def format_files(names: Sequence[str], sources: Sources, *, write: bool) -> list[Formatted]:
    """Format documents, each once; with `write`, write back those that change.

    All documents are read before the first one is written. A file that cannot be written does not stop the others.

    Raises:
        UsageMistake: One is a template, which is not a document before it is rendered; or there are values for
            templates, and no document includes one.
    """
    for name in names:
        if name.endswith(".j2"):
            raise UsageMistake(f"{name} is a template: only the documents that it renders can be formatted")
    found = [_format(name, sources) for name in dict.fromkeys(names)]
    if not any(each.diagnostics for each in found):
        sources.check_context()
    return [_written(each) for each in found] if write else found


def _format(name: str, sources: Sources) -> Formatted:
    try:
        document = read(name, sources)
        folder = document.path.parent if document.path is not None else None
        context = _context_for(document, folder)
        after = format_document(document.data, source=document.name, folder=folder, context=context)
    except LanguageError as error:
        return Formatted(name=source_name(name), path=Path(name), diagnostics=error.diagnostics)
    if b"\r\n" in document.data:
        after = after.replace("\n", "\r\n")
    if document.data.startswith(codecs.BOM_UTF8):
        after = codecs.BOM_UTF8.decode() + after
    return Formatted(name=document.name, path=document.path, before=document.data.decode(), after=after)


def _context_for(document: InputDocument, folder: Path | None) -> Mapping[str, object] | None:
    """Return the values of `--context` if the document is a schema that includes templates."""
    if document.context is None or document.kind is DocumentKind.PROMPT:
        return None
    values = document.context.values
    has_templates = read_schema(document.data, source=document.name, folder=folder, context=values).rendered
    document.context.used |= has_templates
    return values if has_templates else None


def _written(each: Formatted) -> Formatted:
    """Write a document back if it changed. One that cannot be written keeps its text and gets a `fault`."""
    if not each.changed or each.path is None:
        return each
    try:
        replace_file(each.path, each.after.encode())
    except OSError as error:
        return replace(each, after=each.before, fault=system_message(error))
    return each


def _code(found: Sequence[Formatted], *, only_check: bool) -> ExitCode:
    diagnostics = [diagnostic for each in found for diagnostic in each.diagnostics]
    if any(each.fault for each in found):
        return ExitCode.ENVIRONMENT
    failed = bool(diagnostics) or (only_check and any(each.changed for each in found))
    return findings_code(diagnostics, failed=failed)


def _data(found: Sequence[Formatted]) -> dict[str, Any]:
    """Return the result for each document as data; standard input comes with its new text."""
    documents = []
    for each in found:
        data = {"file": each.name, "changed": each.changed, "diagnostics": each.diagnostics}
        data |= {} if each.fault is None else {"error": each.fault}
        documents.append(data if each.path else {**data, "text": each.after})
    return {"documents": documents}


def _print(found: Sequence[Formatted], *, only_check: bool) -> None:
    """Print for each document its diagnostics, its diff or the new text of standard input, and a line if it changes."""
    for each in found:
        if each.diagnostics:
            from promptcache.cli.console import print_diagnostics

            print_diagnostics(each.diagnostics, beside=True)
        if only_check and each.changed:
            write_text(_difference(each))
        elif each.path is None and not only_check and not each.diagnostics:
            write_text(each.after)
        if each.changed and (only_check or each.path is not None):
            tell(f"{each.name}: {'would be formatted' if only_check else 'formatted'}")
        if each.fault is not None:
            tell(f"error: {each.fault}")


def _difference(each: Formatted) -> str:
    before, after = _LINE.findall(each.before), _LINE.findall(each.after)
    lines = difflib.unified_diff(before, after, each.name, f"{each.name} (formatted)")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
