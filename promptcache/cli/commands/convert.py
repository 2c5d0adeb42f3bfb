"""`promptcache convert`: the command and its options."""

from __future__ import annotations

from pathlib import Path

import click

from promptcache.cli.exits import UsageMistake, ending
from promptcache.cli.options import json_option, output_option


@click.command("convert")
@click.argument("file", metavar="FILE")
@click.option("--name", metavar="NAME", help="Of the schema; default: the file's.")
@output_option
@json_option
def command(file: str, name: str | None, output: Path | None, as_json: bool) -> None:
    """Make a schema and a prompt of a chat or a plain prompt; bring the paper's schemas up to date.

    FILE is a chat (JSON), a plain prompt with marked sections, or a schema; - is standard input.
    """
    with ending(as_json=as_json) as sources:
        from promptcache.cli.conversions import convert_text
        from promptcache.cli.files import read
        from promptcache.cli.output import tell, write_json
        from promptcache.cli.schema_names import checked_name, schema_file
        from promptcache.cli.written import write_new
        from promptcache.language.syntax.files import is_template
        from promptcache.language.syntax.source import MAX_BYTES

        if is_template(file):
            raise UsageMistake(f"{file} is a template: only the documents that it renders can be converted")
        document = read(file, sources)
        stem = document.path.stem if document.path is not None else ""
        called = checked_name(stem if name is None else name, mend="say which with --name NAME")
        if len(document.data) > MAX_BYTES:
            raise UsageMistake(f"{document.name} has more than {MAX_BYTES} bytes")
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
        if as_json:
            write_json({"files": [str(path) for path in files], "changes": list(made.changes)})
        else:
            tell(*made.changes, *(f"wrote {path}" for path in files))
