"""`promptcache test`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.completion import complete_schemas
from promptcache.cli.exits import ending
from promptcache.cli.options import context_option, json_option, model_option


@click.command("test")
@click.argument("schemas", metavar="SCHEMA...", nargs=-1, required=True, shell_complete=complete_schemas)
@click.option(
    "--prompts",
    metavar="N",
    type=click.IntRange(min=0),
    default=100,
    help="Drawn for each law; 0 checks the examples only.",
)
@model_option("Also check cached answers of demo, a model's folder, or a hub id.", default=None)
@context_option
@json_option
def command(schemas: tuple[str, ...], prompts: int, model: str | None, context: Path | None, as_json: bool) -> None:
    """Check the examples of schemas, and laws over many prompts of each.

    SCHEMA is a schema file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.console import progress
        from promptcache.cli.output import write_json
        from promptcache.cli.schema_tests import test_files
        from promptcache.cli.schema_tests_text import print_tested, tested_code, tested_data

        with progress() as show:
            found = test_files(schemas, sources, show, num_prompts=prompts, model=model)
        if as_json:
            write_json(tested_data(found))
        else:
            print_tested(found)
        raise click.exceptions.Exit(tested_code(found))
