"""`promptcache grammar`: write the RELAX NG grammar of a schema's prompts."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.exits import ending
from promptcache.cli.files import checked_schema, files_read, read, write_made
from promptcache.cli.options import context_option, json_option, output_file, schema_argument
from promptcache.cli.output import write_json, write_text
from promptcache.language import prompt_grammar


@click.command("grammar")
@schema_argument
@output_file("-o", "--output", words="Default: stdout.")
@context_option
@json_option
def command(schema: str, output: Path | None, context: Path | None, as_json: bool) -> None:
    """Write the RELAX NG grammar of a schema's prompts, for editors.

    SCHEMA is a schema file; - is standard input.
    """
    with ending(as_json=as_json, context=context) as sources:
        checked = checked_schema(read(schema, sources))
        written = prompt_grammar(checked)
        if output is not None:
            write_made({output: written}, files_read(sources, checked))
        if as_json:
            write_json({"schema": checked.name, "file": None if output is None else str(output), "grammar": written})
        elif output is None:
            write_text(written)
