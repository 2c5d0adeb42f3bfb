"""`promptcache fmt`: the command and its options.

Comes in: the words of a command line. Goes out: a call of `formatting`, and an exit code. This file does no work
itself.
"""

from __future__ import annotations

from typing import Annotated

import typer

from promptcache.cli.exits import ending
from promptcache.cli.render import stderr, write_json


def fmt(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Schemas and prompts; - is standard input.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 if a file would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; show what would change.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout instead of text.")] = False,
) -> None:
    """Lay out schemas and prompts anew; their tokens never change."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.formatting import format_files, formatted_code, formatted_data, print_formatted

        found = format_files(files, sources, write=not (check or diff))
        if as_json:
            write_json(formatted_data(found))
        else:
            print_formatted(found, sources, stderr(), only_check=check, as_diff=diff)
        raise typer.Exit(formatted_code(found, only_check=check))
