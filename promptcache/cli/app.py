"""The command line: the list of commands, and the options of `promptcache` itself.

Each command is a file of this folder and is imported when it is called.
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
from click.shell_completion import shell_complete

from promptcache.cli.exits import ExitCode, ending
from promptcache.diagnostics import did_you_mean

NAME = "promptcache"
COMPLETE = "_PROMPTCACHE_COMPLETE"
"""The environment variable in which the script of a shell asks for completions."""

GROUPS = {
    "Write schemas and prompts": {
        "new": "Write a schema to start from, and a prompt beside it.",
        "check": "Find mistakes in schemas and prompts, without loading a model.",
        "why": "Explain a diagnostic code: what it means, an example, and how to fix it.",
        "fmt": "Format schemas and prompts; their tokens never change.",
        "grammar": "Write the RELAX NG grammar of a schema's prompts, for editors.",
        "collect": "Put files into a collection of a schema, or take members out.",
    },
    "Run prompts": {
        "render": "Show exactly what the model will see of a prompt, without loading the model.",
        "run": "Answer a prompt, and say what was reused.",
        "watch": "Check and lay out a document, and answer a prompt, again whenever a file of it is saved.",
        "chat": "Hold a conversation in the terminal, over a schema, a prompt or a saved chat.",
    },
    "Measure and test": {
        "layout": "Show the positions, tokens and KV bytes of a schema, and what each module may see.",
        "test": "Test schemas: their examples, every pair of choices, and your own tests.",
        "fidelity": "Show how far a schema's cached requests are from ordinary prefill, and which settings to use.",
        "bench": "Compare Prompt Cache with the alternatives on your machine.",
    },
    "Serve": {"serve": "Answer prompts over HTTP, with the API of OpenAI."},
    "Keep KV": {
        "warm": "Encode schemas ahead of time, and keep their KV for other processes.",
        "cache": "Inspect and clean up a store of KV.",
    },
}
"""Each command with the first line of its help, by its group. The file of that name has it as `command`."""

COMMANDS = {name: words for commands in GROUPS.values() for name, words in commands.items()}


class _Commands(click.Group):
    """Imports a command when it is called. Errors that click finds end like all others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:8}", words) for name, words in commands.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"promptcache.cli.{cmd_name}").command
        assert isinstance(command, click.Command), f"{cmd_name}.py has no command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            fix = did_you_mean(name, COMMANDS)
            raise click.UsageError(f"there is no command '{name}'{f'; {fix}' if fix else ''}", ctx)
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run a command and exit."""
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


def main() -> None:
    """Run the command line and exit."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the shell closed it: >&-
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - stays open
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # ? replaces characters that cannot be written
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers reads it on import
    if asked := os.environ.get(COMPLETE):
        sys.exit(shell_complete(app, {}, NAME, COMPLETE, asked))
    app()


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"promptcache {version('promptcache')}")
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
def app() -> None:
    """Modular prompts: the KV of every module is computed once, and linked into each prompt that names it.

    To begin: promptcache new helpdesk
    """
