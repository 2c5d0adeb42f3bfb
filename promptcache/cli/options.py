"""Options and arguments that several commands share, and the decorator of commands that have `--json`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from click.exceptions import Exit

from promptcache.cli.exits import ExitCode, ending
from promptcache.cli.output import write_json, write_text
from promptcache.diagnostics import BYTES, Kind
from promptcache.options import OPTIONS, type_of

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, readable=False)  # reading it reports whether it can be read
DOCUMENT = click.Path(readable=False)  # the name as given; - is standard input
HELP = {"max_content_width": 100, "show_default": True, "help_option_names": ["-h", "--help"]}
"""Settings of the help of all commands."""
DEFAULT_STORE = "~/.cache/promptcache/store"

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


class Size(click.ParamType[int]):
    """A number of bytes: "8 GB", "512MiB", "1000000"."""

    name = "SIZE"

    def __init__(self, kind: Kind = BYTES) -> None:
        """Create the type of the sizes of a kind."""
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        parts = _SIZE.fullmatch(value)
        if parts is None or parts[2].lower() not in _UNITS:
            self.fail(f"{value!r} is no size; write it like 500MB, 8GB or 2GiB", param, ctx)
        size = int(min(float(parts[1]) * _UNITS[parts[2].lower()], 2**63))
        if not self._kind.takes(size):
            self.fail(f"{value!r} is not allowed: {self._kind.words} is expected", param, ctx)
        return size


class OptionType(click.ParamType[Any]):
    """The values of an option of answers."""

    def __init__(self, option: str) -> None:
        """Create the type of the values of an option of this name."""
        self.name = option
        self._parse, self._kind = type_of(option), OPTIONS[option].kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that a text stands for."""
        try:
            parsed = self._parse(value)
        except ValueError:
            parsed = None
        if parsed is None or not self._kind.takes(parsed):
            self.fail(f"{value!r} is not allowed: {self._kind.words} is expected", param, ctx)
        return parsed


class CommandGroup(click.Group):
    """A group whose help shows the whole first line of each command's help, and whose errors end like all others."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries(ctx))

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return the name of each command with the first line of its help."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        return [(name, (command.help or "").partition("\n")[0]) for name, command in found if command is not None]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command and exit. Errors that click finds end like all others."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            with (
                ending(as_json="--json" in words),
                self.make_context(prog_name or self.name, words, **extra) as context,
            ):
                self.invoke(context)
        except Exit as end:
            sys.exit(end.exit_code)
        sys.exit(ExitCode.OK)


def output_file(*names: str, words: str, required: bool = False) -> Callable[[Decorated], Decorated]:
    """Return an option that names a file to write."""
    return click.option(*names, metavar="FILE", type=FILE, required=required, callback=_file_name, help=words)


def _file_name(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and str(path) in {"-", "."}:  # "" is "."
        raise click.BadParameter("the name of a file is expected.")
    return path


def model_option(
    words: str = "demo, a model's folder, or a hub id.", default: str | None = "demo"
) -> Callable[[Decorated], Decorated]:
    """Return the option that names a model."""
    return click.option("--model", default=default, type=DOCUMENT, help=words)


def store_option(words: str, default: str | None = DEFAULT_STORE) -> Callable[[Decorated], Decorated]:
    """Return the option that names a store."""
    return click.option("--store", metavar="DIR", default=default, envvar="PROMPTCACHE_STORE", help=words)


def answer_option(name: str) -> Callable[[Decorated], Decorated]:
    """Return an option of answers."""
    metavar = name.upper() if type_of(name) is str else "N"
    return click.option(f"--{name.replace('_', '-')}", metavar=metavar, type=OptionType(name), help=OPTIONS[name].words)


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout instead of text.")
context_option = click.option(
    "--context", metavar="FILE", type=FILE, help="The values of templates, *.xml.j2: a JSON object."
)
repair_option = answer_option("repair")
schema_argument = click.argument("schema", metavar="SCHEMA", type=DOCUMENT)
schemas_argument = click.argument("schemas", metavar="SCHEMA...", nargs=-1, required=True, type=DOCUMENT)
prompt_argument = click.argument("prompt", metavar="PROMPT", type=DOCUMENT)
output_option = output_file("-o", "--output", words="Default: NAME.xml.")
schemas_option = click.option(
    "--schema",
    metavar="FILE",
    multiple=True,
    type=DOCUMENT,
    help="The prompt's schema; default: the schema of that name near the prompt.",
)
arguments_option = click.option(
    "--arg",
    metavar="[MODULE.]NAME=VALUE",
    multiple=True,
    help="Fill a parameter of the prompt, or replace its argument.",
)
limit_option = click.option(
    "--limit", metavar="SIZE", type=Size(), help='Maximum size of the folder, such as "8 GB"; default: no limit.'
)
keep_option = click.option(
    "--keep",
    type=click.Choice(["full", "int8", "int4"]),
    default="full",
    help="Codec of the stored KV: as computed, or quantized.",
)
device_option = click.option("--device", help="cpu, cuda, cuda:1, ...; default: a GPU if there is one.")
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", "float16", "bfloat16", "float32", "float64"]),
    default="auto",
    help="Dtype of the weights; auto is the dtype of the checkpoint.",
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

    @json_option
    @wraps(command)
    def written(*, as_json: bool, context: Path | None = None, **own: object) -> None:
        with ending(as_json=as_json, context=context) as sources:
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
