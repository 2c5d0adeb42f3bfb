"""`promptcache fmt`: format schemas and prompts in place.

A file with errors is not changed. A file that changes is replaced atomically and keeps its mode, line ends and byte
order mark.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from promptcache.cli.documents import DocumentKind, Sources, read, replace_file
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
    for name in files:
        if name.endswith(".j2"):
            raise UsageMistake(f"{name} is a template: only the documents that it renders can be formatted")
    found = [_format(name, sources) for name in dict.fromkeys(files)]  # all are read before the first one is written
    diagnostics = [diagnostic for each in found for diagnostic in each.diagnostics]
    if not diagnostics:
        sources.check_context()
    if not check:
        found = [_written(each) for each in found]
    documents = []
    for each in found:
        data = {"file": each.name, "changed": each.changed, "diagnostics": each.diagnostics}
        data |= {} if each.fault is None else {"error": each.fault}
        documents.append(data if each.path else {**data, "text": each.after})
    if any(each.fault for each in found):
        code = ExitCode.ENVIRONMENT
    else:
        failed = bool(diagnostics) or (check and any(each.changed for each in found))
        code = findings_code(diagnostics, failed=failed)
    return Output(data={"documents": documents}, text=partial(_print, found, only_check=check), code=code)


def _format(name: str, sources: Sources) -> Formatted:
    try:
        document = read(name, sources)
        folder = document.path and document.path.parent
        values = None
        if document.context is not None and document.kind is not DocumentKind.PROMPT:
            values = document.context.values
            source = read_schema(document.data, source=document.name, folder=folder, context=values)
            document.context.used |= source.rendered
            values = values if source.rendered else None  # the schema includes no templates
        after = format_document(document.data, source=document.name, folder=folder, context=values)
    except LanguageError as error:
        return Formatted(name="<stdin>" if name == "-" else name, path=Path(name), diagnostics=error.diagnostics)
    if b"\r\n" in document.data:
        after = after.replace("\n", "\r\n")
    if document.data.startswith(codecs.BOM_UTF8):
        after = codecs.BOM_UTF8.decode() + after
    return Formatted(name=document.name, path=document.path, before=document.data.decode(), after=after)


def _written(each: Formatted) -> Formatted:
    """Write a document back if it changed. One that cannot be written keeps its text and gets a `fault`."""
    if not each.changed or each.path is None:
        return each
    try:
        replace_file(each.path, each.after.encode())
    except OSError as error:
        return replace(each, after=each.before, fault=system_message(error))
    return each


def _print(found: Sequence[Formatted], *, only_check: bool) -> None:
    """Print for each document its diagnostics, its diff or the new text of standard input, and a line if it changes."""
    for each in found:
        if each.diagnostics:
            from promptcache.cli.console import print_diagnostics

            print_diagnostics(each.diagnostics, beside=True)
        if only_check and each.changed:
            before, after = _LINE.findall(each.before), _LINE.findall(each.after)
            for line in difflib.unified_diff(before, after, each.name, f"{each.name} (formatted)"):
                write_text(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
        elif each.path is None and not only_check and not each.diagnostics:
            write_text(each.after)
        if each.changed and (only_check or each.path is not None):
            tell(f"{each.name}: {'would be formatted' if only_check else 'formatted'}")
        if each.fault is not None:
            tell(f"error: {each.fault}")
