"""The command line: which commands there are, and how each of them ends.

Comes in: the words of a command line. Goes out: a call of one command, and an exit code. This file does no work itself,
and loads only the command that is asked for.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click
from click.exceptions import Exit

from promptcache.cli.exits import ExitCode, ending
from promptcache.cli.options import CommandGroup
from promptcache.cli.output import tell
from promptcache.diagnostics import did_you_mean

COMMANDS = {
    "new": "promptcache.cli.commands.new",
    "convert": "promptcache.cli.commands.convert",
    "check": "promptcache.cli.commands.check",
    "why": "promptcache.cli.commands.why",
    "fmt": "promptcache.cli.commands.fmt",
    "layout": "promptcache.cli.layout",
    "render": "promptcache.cli.commands.render",
    "explain": "promptcache.cli.commands.explain",
    "diff": "promptcache.cli.diff",
    "grammar": "promptcache.cli.commands.grammar",
    "test": "promptcache.cli.commands.test",
    "run": "promptcache.cli.commands.run",
    "warm": "promptcache.cli.commands.warm",
    "cache": "promptcache.cli.commands.cache",
    "bench": "promptcache.cli.bench",
}
"""Each command, and the file whose `command` it is."""


NAME = "promptcache"


class _Commands(CommandGroup):
    """The commands of the table, loaded one by one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command), f"{COMMANDS[cmd_name]} has no command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            mend = did_you_mean(name, COMMANDS)
            raise click.UsageError(f"there is no command '{name}'{f'; {mend}' if mend else ''}", ctx)
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command and exit; what click itself finds wrong ends like everything else."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            with (
                ending(as_json="--json" in words),
                self.make_context(prog_name or NAME, words, **extra) as context,
            ):
                self.invoke(context)
        except Exit as end:
            sys.exit(end.exit_code)
        sys.exit(ExitCode.OK)


def main() -> None:
    """Run the command line and exit."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of a traceback
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when transformers is imported
    if asked := os.environ.get("_PROMPTCACHE_COMPLETE"):
        from promptcache.cli.shells import complete

        complete(app, asked)
    app()


def _open_streams() -> None:
    """Give every stream that was closed when we started (`>&-`) an end, as there is one for what nobody reads."""
    sys.stdin = sys.stdin or Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - open as long as we run
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"promptcache {version('promptcache')}")
        ctx.exit()


def _show_completion(ctx: click.Context, _parameter: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        from promptcache.cli.shells import script

        click.echo(script(app, shell), nl=False)
        ctx.exit()


def _install_completion(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from promptcache.cli.shells import install

        tell(*install(app))
        ctx.exit()


@click.group(
    cls=_Commands,
    name=NAME,
    no_args_is_help=True,
    context_settings={"max_content_width": 100, "show_default": True, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.option(
    "--show-completion",
    metavar="SHELL",
    is_eager=True,
    expose_value=False,
    callback=_show_completion,
    help="Print what makes a shell complete: bash, zsh, fish or powershell.",
)
@click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_install_completion,
    help="Set the current shell up to complete.",
)
def app() -> None:
    """Modular prompts whose attention states are computed once."""
