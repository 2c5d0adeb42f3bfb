"""`promptcache new`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.completion import complete_starters
from promptcache.cli.exits import ending
from promptcache.cli.options import json_option, output_option


@click.command("new")
@click.argument("name", metavar="NAME")
@click.option(
    "--from",
    "origin",
    metavar="SCHEMA",
    help="One that comes with promptcache; default: a small one with comments.",
    shell_complete=complete_starters,
)
@output_option
@json_option
def command(name: str, origin: str | None, output: Path | None, as_json: bool) -> None:
    """Write a schema to start from, and a prompt beside it.

    NAME is what prompts call the schema.
    """
    with ending(as_json=as_json):
        from promptcache.cli.output import tell, write_json
        from promptcache.cli.schema_names import checked_name, schema_file
        from promptcache.cli.starters import starter
        from promptcache.cli.written import write_new

        made = starter(checked_name(name), origin)
        schema = output or schema_file(name)
        prompt = schema.with_name(f"{schema.stem}-prompt.xml")
        files = {schema: made.schema, prompt: made.prompt}
        files |= {schema.parent / source: text for source, text in made.sources.items()}
        write_new(files)
        if as_json:
            write_json({"schema": name, "files": [str(path) for path in files]})
        else:
            tell(*(f"wrote {path}" for path in files), f"try: promptcache run {prompt}")
