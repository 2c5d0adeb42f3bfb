"""`promptcache grammar`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.exits import ending
from promptcache.cli.options import FILE, context_option, json_option, schema_argument


@click.command("grammar")
@schema_argument
@click.option("-o", "--output", metavar="FILE", type=FILE, help="Default: stdout.")
@context_option
@json_option
def command(schema: str, output: Path | None, context: Path | None, as_json: bool) -> None:
    """Write the RELAX NG grammar of a schema's prompts, for editors.

    SCHEMA is a schema file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        from promptcache.cli.files import checked_schema, read
        from promptcache.cli.output import write_json, write_text
        from promptcache.language.prompt_grammar import prompt_grammar

        checked = checked_schema(read(schema, sources))
        written = prompt_grammar(checked)
        if output is not None:
            output.write_text(written, encoding="utf-8")
        if as_json:
            write_json({"schema": checked.name, "file": None if output is None else str(output), "grammar": written})
        elif output is None:
            write_text(written)
