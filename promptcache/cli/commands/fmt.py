"""`promptcache fmt`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.completion import complete_documents
from promptcache.cli.exits import ending
from promptcache.cli.options import context_option, json_option


@click.command("fmt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_documents)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file would change.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change.")
@context_option
@json_option
def command(files: tuple[str, ...], check: bool, diff: bool, context: Path | None, as_json: bool) -> None:
    """Lay out schemas and prompts anew; their tokens never change.

    FILE is a schema or a prompt; - is standard input, which is written to stdout.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.formatting import format_files, formatted_code, formatted_data, print_formatted
        from promptcache.cli.output import write_json

        found = format_files(files, sources, write=not (check or diff))
        if as_json:
            write_json(formatted_data(found))
        else:
            print_formatted(found, only_check=check, as_diff=diff)
        raise click.exceptions.Exit(formatted_code(found, only_check=check))
