"""Groups of commands, which end in one way, and groups of options in the help of a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import click
from click.exceptions import Exit

from promptcache.cli.exits import ExitCode, ending

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
HELP = {"max_content_width": 100, "show_default": True, "help_option_names": ["-h", "--help"]}
"""Settings of the help of all commands."""


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


class CommandGroup(click.Group):
    """A group whose help shows the whole first line of each command's help, and whose errors end like all others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, (each.help or "").partition("\n")[0]) for name, each in found if each is not None]
            )

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
