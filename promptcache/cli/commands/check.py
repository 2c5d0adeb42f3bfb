"""`promptcache check`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.completion import complete_documents
from promptcache.cli.exits import ending
from promptcache.cli.formats import Format, chosen_format, write_report
from promptcache.cli.options import context_option, model_option, schemas_option


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_documents)
@schemas_option
@context_option
@model_option("Also count tokens, as demo, a model's folder, or a hub id does.", default=None)
@click.option("--strict", is_flag=True, help="Warnings are findings, too: exit code 1.")
@click.option("--format", "form", type=click.Choice([*map(str, Format)]), help="Default: text.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def command(
    files: tuple[str, ...],
    schema: tuple[str, ...],
    model: str | None,
    strict: bool,
    form: str | None,
    context: Path | None,
    as_json: bool,
) -> None:
    """Find mistakes in schemas and prompts, without loading a model.

    FILE is a schema or a prompt; - is standard input.
    """
    with ending(as_json=as_json or form == "json", context=context) as sources:
        from promptcache.cli.check import check_files, report_code

        chosen = chosen_format(Format(form) if form else None, as_json=as_json)
        report = check_files(files, schema, sources, model)
        write_report(report, chosen)
        raise click.exceptions.Exit(report_code(report, strict=strict))
