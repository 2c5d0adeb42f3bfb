"""`promptcache grammar`: the grammar of the prompts of one schema.

Comes in: a schema file. Goes out: RELAX NG, to a file or to stdout. What the grammar says is not known here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptcache.cli.exits import ending
from promptcache.cli.render import write_json, write_text


def grammar(
    schema: Annotated[str, typer.Argument(metavar="SCHEMA", help="A schema file; - is standard input.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: stdout.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout instead of text.")] = False,
) -> None:
    """Write the RELAX NG grammar of a schema's prompts, for editors."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.files import checked_schema, read
        from promptcache.language.prompt_grammar import prompt_grammar

        checked = checked_schema(read(schema, sources))
        written = prompt_grammar(checked)
        if output is not None:
            output.write_text(written, encoding="utf-8")
        if as_json:
            write_json({"schema": checked.name, "file": None if output is None else str(output), "grammar": written})
        elif output is None:
            write_text(written)
