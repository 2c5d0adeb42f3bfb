"""`promptcache grammar`: write the RELAX NG grammar of a schema's prompts."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.documents import Sources, checked_schema, files_read, read, write_made
from promptcache.cli.options import Output, context_option, output_file, schema_argument, with_json
from promptcache.language import prompt_grammar


@click.command("grammar")
@schema_argument
@output_file("-o", "--output", words="Default: stdout.")
@context_option
@with_json
def command(sources: Sources, schema: str, output: Path | None) -> Output:
    """Write the RELAX NG grammar of a schema's prompts, for editors.

    SCHEMA is a schema file; - is standard input.
    """
    checked = checked_schema(read(schema, sources))
    written = prompt_grammar(checked)
    if output is not None:
        write_made({output: written}, files_read(sources, checked))
    data = {"schema": checked.name, "file": None if output is None else str(output), "grammar": written}
    return Output(data=data, text=written if output is None else "")
