"""`promptcache test`: the command and its options.

Comes in: the words of a command line. Goes out: calls of `testing`, and an exit code. This file does no work itself.
"""

from __future__ import annotations

from typing import Annotated

import typer

from promptcache.cli.completion import complete_models, complete_schemas
from promptcache.cli.exits import ending
from promptcache.cli.render import stdout, write_json


def run_tests(
    schemas: Annotated[
        list[str],
        typer.Argument(metavar="SCHEMA", help="Schema files; - is standard input.", autocompletion=complete_schemas),
    ],
    prompts: Annotated[int, typer.Option(min=0, help="Drawn for each law; 0 checks the examples only.")] = 100,
    model: Annotated[
        str | None,
        typer.Option(help="Also check cached answers of demo, or of a model's folder.", autocompletion=complete_models),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout instead of text.")] = False,
) -> None:
    """Check the examples of schemas, and laws over many prompts of each."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.tested import print_tested, tested_code, tested_data
        from promptcache.cli.testing import test_files

        found = test_files(schemas, sources, num_prompts=prompts, model=model)
        if as_json:
            write_json(tested_data(found))
        else:
            print_tested(found, sources, stdout())
        raise typer.Exit(tested_code(found))
