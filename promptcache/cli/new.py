"""`promptcache new`: a schema to start from, and a prompt beside it.

Comes in: a name. Goes out: files. What stands in them is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from promptcache.cli.completion import complete_starters
from promptcache.cli.exits import UsageMistake, ending
from promptcache.cli.render import stderr, write_json


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What prompts call the schema.")],
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SCHEMA",
            help="One that comes with promptcache; default: a small one with comments.",
            autocompletion=complete_starters,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: NAME.xml.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout instead of text.")] = False,
) -> None:
    """Write a schema to start from, and a prompt beside it."""
    with ending(as_json=as_json):
        from promptcache.cli.starters import starter

        made = starter(name, origin)
        schema = output or schema_file(name)
        prompt = schema.with_name(f"{schema.stem}-prompt.xml")
        files = {schema: made.schema, prompt: made.prompt}
        files |= {schema.parent / source: text for source, text in made.sources.items()}
        write_new(files)
        if as_json:
            write_json({"schema": name, "files": [str(path) for path in files]})
        else:
            written = "".join(f"wrote {path}\n" for path in files)
            stderr().print(f"{written}try: promptcache run {prompt}", markup=False, soft_wrap=True)


def schema_file(name: str) -> Path:
    """Return the file, in the working directory, of a schema called `name`.

    Raises:
        UsageMistake: it would lie elsewhere.
    """
    if Path(name).name != name:
        raise UsageMistake(f"'{name}' cannot be a file's name: say where to write with -o FILE")
    return Path(f"{name}.xml")


def write_new(files: Mapping[Path, str]) -> None:
    """Write files that do not exist yet, and their folders; none if one of them does.

    Raises:
        UsageMistake: one of them exists.
    """
    taken = [str(path) for path in files if path.exists()]
    if taken:
        raise UsageMistake(f"{' and '.join(taken)} exists already; nothing was written")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
