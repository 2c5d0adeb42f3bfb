"""`promptcache new`: write a schema to start from, after `starter.xml` or one of the shipped schemas, and a prompt."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.sax.saxutils import quoteattr

import click

from promptcache.cli.documents import Sources, shipped_schemas, write_new
from promptcache.cli.exits import UsageMistake
from promptcache.cli.options import Output, output_file, with_json
from promptcache.cli.output import tell
from promptcache.language import example_prompt, parse_schema

_STARTER = Path(__file__).with_name("starter.xml")
BEYOND_DEMO = frozenset({"agent", "code", "persona"})
"""Shipped schemas whose prompts the demo model cannot answer."""

_SMALL_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
_SOURCE = re.compile(r'\bsrc="([^"]+)"')


@click.command("new")
@click.argument("name", metavar="NAME")
@click.option(
    "--from",
    "origin",
    type=click.Choice([*shipped_schemas()]),
    help="A schema that comes with promptcache; default: a small one with comments.",
)
@output_file("-o", "--output", words="File of the schema; default: NAME.xml. The prompt is NAME-prompt.xml beside it.")
@with_json
def command(_sources: Sources, name: str, origin: str | None, output: Path | None) -> Output:
    """Write a schema to start from, and a prompt beside it.

    NAME is the name of the schema.
    """
    if not name or any(character.isspace() or not character.isprintable() for character in name):
        raise UsageMistake("a schema's name is text without spaces: write it as in `promptcache new travel-planner`")
    start = _STARTER if origin is None else shipped_schemas()[origin]
    text = start.read_text(encoding="utf-8")
    for place in ("<schema name=", "<prompt schema="):
        text = text.replace(f'{place}"{start.stem}"', f"{place}{quoteattr(name)}")
    example = next(each for each in parse_schema(text, folder=start.parent).examples if each.valid)
    if output is None and (Path(name).name != name or name[0] in ".-"):  # in another folder, hidden, or an option
        raise UsageMistake(f"'{name}' cannot be a file's name: say where to write with -o FILE")
    schema = output or Path(f"{name}.xml")
    prompt = schema.with_name(f"{schema.stem}-prompt.xml")
    files = {schema: text, prompt: replace(example_prompt(example), schema=name).to_xml()}
    for source in _SOURCE.findall(text):
        files[schema.parent / source] = (start.parent / source).read_text(encoding="utf-8")
    write_new(files)
    run = f"promptcache run {shlex.quote(str(prompt))}"
    hint = [f"try: {run}"]
    if origin in BEYOND_DEMO:
        hint = [f"try: {run} --model {_SMALL_MODEL}", "or with another model: the demo model reads facts only"]
    return Output(
        data={"schema": name, "files": [str(path) for path in files]},
        text=partial(tell, *(f"wrote {path}" for path in files), *hint),
    )
