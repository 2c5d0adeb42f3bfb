"""`promptcache new`: write a schema to start from, after `starter.xml` or one of the shipped schemas, and a prompt."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from xml.sax.saxutils import quoteattr

import click

from promptcache.cli.documents import Sources, shipped_schemas, write_new
from promptcache.cli.exits import UsageMistake
from promptcache.cli.options import Output, output_option, with_json
from promptcache.cli.output import tell
from promptcache.language import example_prompt, parse_schema

_STARTER = Path(__file__).with_name("starter.xml")
BEYOND_DEMO = frozenset({"agent", "code", "persona"})
"""Shipped schemas whose prompts the demo model cannot answer."""

_SMALL_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
_SOURCE = re.compile(r'\bsrc="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """A schema with its files.

    Attributes:
        schema: The document under its new name.
        prompt: Its first valid example.
        sources: Files that its modules take their text from, by path relative to the schema.
    """

    schema: str
    prompt: str
    sources: Mapping[str, str]


@click.command("new")
@click.argument("name", metavar="NAME")
@click.option(
    "--from",
    "origin",
    type=click.Choice([*shipped_schemas()]),
    help="A schema that comes with promptcache; default: a small one with comments.",
)
@output_option
@with_json
def command(_sources: Sources, name: str, origin: str | None, output: Path | None) -> Output:
    """Write a schema to start from, and a prompt beside it.

    NAME is the name of the schema.
    """
    made = starter(checked_name(name), origin)
    schema = output or schema_file(name)
    prompt = schema.with_name(f"{schema.stem}-prompt.xml")
    files = {schema: made.schema, prompt: made.prompt}
    files |= {schema.parent / source: text for source, text in made.sources.items()}
    write_new(files)
    run = f"promptcache run {shlex.quote(str(prompt))}"
    hint = [f"try: {run}"]
    if origin in BEYOND_DEMO:
        hint = [f"try: {run} --model {_SMALL_MODEL}", "or with another model: the demo model reads facts only"]
    return Output(
        data={"schema": name, "files": [str(path) for path in files]},
        text=partial(tell, *(f"wrote {path}" for path in files), *hint),
    )


def starter(name: str, origin: str | None) -> Starter:
    """Return a schema called `name`, made from the shipped schema `origin`, or from the starter for None."""
    path = _STARTER if origin is None else shipped_schemas()[origin]
    text = path.read_text(encoding="utf-8")
    old, new = f'"{path.stem}"', quoteattr(name)
    for place in ("<schema name=", "<prompt schema="):
        text = text.replace(f"{place}{old}", f"{place}{new}")
    shown = next(each for each in parse_schema(text, folder=path.parent).examples if each.valid)
    return Starter(
        schema=text,
        prompt=replace(example_prompt(shown), schema=name).to_xml(),
        sources={each: (path.parent / each).read_text(encoding="utf-8") for each in _SOURCE.findall(text)},
    )


def checked_name(name: str, fix: str = "write it as in `promptcache new travel-planner`") -> str:
    """Return `name` if a schema can have it.

    Raises:
        UsageMistake: It is empty, or has spaces or characters that cannot be printed.
    """
    if not name or any(character.isspace() or not character.isprintable() for character in name):
        raise UsageMistake(f"a schema's name is text without spaces: {fix}")
    return name


def schema_file(name: str) -> Path:
    """Return the file in the working directory for a schema called `name`.

    Raises:
        UsageMistake: It would be in another folder, be hidden, or look like an option.
    """
    if Path(name).name != name or name[0] in ".-":
        raise UsageMistake(f"'{name}' cannot be a file's name: say where to write with -o FILE")
    return Path(f"{name}.xml")
