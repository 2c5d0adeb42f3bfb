"""Options and arguments that several commands have.

Comes in: nothing. Goes out: decorators of click. This file knows no command.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from promptcache.cli.completion import complete_arguments, complete_models, complete_prompts, complete_schemas
from promptcache.cli.model_folder import DEMO, Dtype
from promptcache.cli.sizes import Size

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, readable=False)  # whether it can be read is told when it is


class CommandGroup(click.Group):
    """A group whose help has the first sentence of every command whole; click itself cuts it."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, (command.help or "").partition("\n")[0]) for name, command in found if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def output_file(*names: str, words: str, required: bool = False) -> Callable[[Decorated], Decorated]:
    """Return the option that names a file to be written."""
    return click.option(*names, metavar="FILE", type=FILE, required=required, callback=_file_name, help=words)


def _file_name(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and str(path) in {"-", "."}:  # "" is "."
        raise click.BadParameter("the name of a file is expected.")
    return path


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout instead of text.")
context_option = click.option(
    "--context", metavar="FILE", type=FILE, help="The values of templates, *.xml.j2: a JSON object."
)
schema_argument = click.argument("schema", metavar="SCHEMA", shell_complete=complete_schemas)
prompt_argument = click.argument("prompt", metavar="PROMPT", shell_complete=complete_prompts)
output_option = output_file("-o", "--output", words="Default: NAME.xml.")
schemas_option = click.option(
    "--schema",
    metavar="FILE",
    multiple=True,
    help="The prompt's schema; default: one of that name near the prompt.",
    shell_complete=complete_schemas,
)
arguments_option = click.option(
    "--arg",
    metavar="[MODULE.]NAME=VALUE",
    multiple=True,
    help="Fill a parameter of the prompt, or replace its argument.",
    shell_complete=complete_arguments,
)


def model_option(
    words: str = "demo, a model's folder, or a hub id.", default: str | None = DEMO
) -> Callable[[Decorated], Decorated]:
    """Return the option that names a model."""
    return click.option("--model", default=default, help=words, shell_complete=complete_models)


DEFAULT_STORE = "~/.cache/promptcache/store"


def store_option(words: str, default: str | None = DEFAULT_STORE) -> Callable[[Decorated], Decorated]:
    """Return the option that names a store."""
    return click.option("--store", metavar="DIR", default=default, envvar="PROMPTCACHE_STORE", help=words)


limit_option = click.option(
    "--limit", metavar="SIZE", type=Size(), help='Bytes that the folder may take, such as "8 GB"; default: no limit.'
)
keep_option = click.option(
    "--keep",
    type=click.Choice(["full", "int8", "int4"]),
    default="full",
    help="How KV is kept: as computed, or quantized.",
)
device_option = click.option("--device", help="cpu, cuda, cuda:1, ...; default: a GPU where there is one.")
dtype_option = click.option(
    "--dtype",
    type=click.Choice([*map(str, Dtype)]),
    default="auto",
    help="Of the weights; auto is the checkpoint's own.",
)
