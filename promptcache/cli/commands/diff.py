"""`promptcache diff`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.completion import complete_schemas
from promptcache.cli.exits import ExitCode, ending
from promptcache.cli.options import context_option, json_option, model_option


@click.command("diff")
@click.argument("old", metavar="OLD", shell_complete=complete_schemas)
@click.argument("new", metavar="NEW", shell_complete=complete_schemas)
@model_option()
@context_option
@json_option
def command(old: str, new: str, model: str, context: Path | None, as_json: bool) -> None:
    """Show what a change of a schema costs: slots, encodings, and prompts that stop being valid.

    OLD and NEW are files of one schema, before and after the change; one of them may be -, standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.console import stdout
        from promptcache.cli.diff import changes_data, compare_files
        from promptcache.cli.diff_text import print_changes
        from promptcache.cli.output import write_json

        changes = compare_files(old, new, model, sources)
        if as_json:
            write_json(changes_data(changes))
        else:
            print_changes(changes, stdout())
        raise click.exceptions.Exit(ExitCode.OK if changes.harmless else ExitCode.FINDINGS)
