"""Options and arguments that several commands share, groups of options, and the decorator of commands with `--json`.

This file loads little: `check` starts fast. Options that are made from declarations are in `promptcache.cli.settings`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.exceptions import Exit

from promptcache.cli.documents import Sources
from promptcache.cli.exits import ExitCode, ending
from promptcache.cli.output import write_json, write_text

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, readable=False)  # reading it reports whether it can be read
DOCUMENT = click.Path(readable=False)  # the name as given; - is standard input
DEFAULT_STORE = "~/.cache/promptcache/store"


class GroupedOption(click.Option):
    """An option with a heading above it in the help of a `GroupedCommand`."""

    def __init__(self, *names: Any, group: str, **own: Any) -> None:
        super().__init__(*names, **own)
        self.group = group


def grouped_option(group: str, *names: str, **own: Any) -> Callable[[Decorated], Decorated]:
    """Return an option in a group; `own` are arguments of `click.option`."""
    return click.option(*names, cls=GroupedOption, group=group, **own)


class GroupedCommand(click.Command):
    """A command whose help has a section for each group of its options, in the order of their first ones."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                groups.setdefault(each.group if isinstance(each, GroupedOption) else "Options", []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def output_file(*names: str, words: str) -> Callable[[Decorated], Decorated]:
    """Return an option that names a file to write."""

    def check(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and str(path) in {"-", "."}:  # "" is "."
            raise click.BadParameter("the name of a file is expected.")
        return path

    return click.option(*names, metavar="FILE", type=FILE, callback=check, help=words)


def model_option(
    words: str = "demo, a model's folder, or a hub id.", default: str | None = "demo"
) -> Callable[[Decorated], Decorated]:
    """Return the option that names a model."""
    return grouped_option("Model", "--model", metavar="MODEL", default=default, type=DOCUMENT, help=words)


def store_option(words: str, default: str | None = DEFAULT_STORE) -> Callable[[Decorated], Decorated]:
    """Return the option that names a store."""
    return grouped_option(
        "Cached KV", "--store", metavar="DIR", default=default, envvar="PROMPTCACHE_STORE", help=words
    )


context_option = grouped_option(
    "Schemas",
    "--context",
    metavar="FILE",
    type=FILE,
    help='For templates, *.xml.j2, only: a JSON file with values for their names, as {"city": "Rome"} for {{ city }}.',
)
schema_argument = click.argument("schema", metavar="SCHEMA", type=DOCUMENT)
schemas_argument = click.argument("schemas", metavar="SCHEMA...", nargs=-1, required=True, type=DOCUMENT)
prompt_argument = click.argument("prompt", metavar="PROMPT", type=DOCUMENT)
schemas_option = grouped_option(
    "Schemas",
    "--schema",
    metavar="FILE",
    multiple=True,
    type=DOCUMENT,
    help="The prompt's schema; default: the schema of that name in the folders around the prompt.",
)
arguments_option = click.option(
    "--arg",
    metavar="[MODULE.]NAME=VALUE",
    multiple=True,
    help='Fill a parameter of the prompt, as in --arg duration="four days"; may be given several times.',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The result of a command. Functions make or print it later, so that a text can be written while it is made.

    Attributes:
        data: For `--json`, or a function that returns it.
        text: Written without `--json`, or a function that prints it.
    """

    data: object | Callable[[], object]
    text: str | Callable[[], object]
    code: ExitCode = ExitCode.OK


def with_json(command: Callable[..., Output]) -> Callable[..., None]:
    """Add `--json` to a command, which takes its `Sources` before its options and returns an `Output`."""

    @click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout instead of text.")
    @wraps(command)
    def written(*, as_json: bool, context: Path | None = None, **own: object) -> None:
        with ending(as_json=as_json):
            sources = Sources(context)
            output = command(sources, **own)
            if not output.code:
                sources.check_context()
            if as_json:
                write_json(output.data() if callable(output.data) else output.data)
            elif isinstance(output.text, str):
                write_text(output.text)
            else:
                output.text()
            if output.code:
                raise Exit(output.code)

    return written
