"""`promptcache convert`: what exists already, as a schema and a prompt.

Comes in: a file. Goes out: new files, and what was changed. How things are converted is not known here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptcache.cli.exits import UsageMistake, ending
from promptcache.cli.new import schema_file, write_new
from promptcache.cli.render import stderr, write_json


def convert(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A chat (JSON), a marked prompt, or a schema; - is standard input.")
    ],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the schema; default: the file's.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: NAME.xml.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON to stdout instead of text.")] = False,
) -> None:
    """Make a schema and a prompt of a chat or a plain prompt; bring the paper's schemas up to date."""
    with ending(as_json=as_json) as sources:
        from promptcache.cli.conversions import convert_text
        from promptcache.cli.files import read

        document = read(file, sources)
        called = name or (document.path.stem if document.path else "")
        if not called or any(character.isspace() for character in called):
            raise UsageMistake("a schema's name is text without spaces: say which with --name NAME")
        try:
            text = document.data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UsageMistake(f"{document.name} is not UTF-8") from None
        made = convert_text(text, called, document.name, document.folder)
        schema = output or schema_file(called)
        files = {schema: made.schema}
        if made.prompt is not None:
            files[schema.with_name(f"{schema.stem}-prompt.xml")] = made.prompt
        write_new(files)
        written = [str(path) for path in files]
        if as_json:
            write_json({"files": written, "changes": list(made.changes)})
        else:
            lines = [*made.changes, *(f"wrote {path}" for path in written)]
            stderr().print("\n".join(lines), markup=False, soft_wrap=True)
