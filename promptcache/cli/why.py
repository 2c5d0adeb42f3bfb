"""`promptcache why`: explain a diagnostic code."""

from __future__ import annotations

import re
from functools import partial
from itertools import groupby

import click
from rich.text import Text

from promptcache.cli.console import COLOURS, stdout
from promptcache.cli.documents import Sources
from promptcache.cli.exits import UsageMistake
from promptcache.cli.options import Output, with_json
from promptcache.diagnostics import CODES, LINK, Code, Severity, num_slips, suggest

_PRINTED = re.compile(r"(?:error|warning)?\[(\w+)\]:?")
_MARKED = re.compile(r"\*\*(?P<strong>.+?)\*\*|`(?P<code>[^`]+)`")


@click.command("why")
@click.argument("code", metavar="[CODE]", required=False)
@with_json
def command(_sources: Sources, code: str | None) -> Output:
    """Explain a diagnostic code: what it means, an example, and how to fix it.

    CODE is the code of a message, such as PC401 or error[PC401]; without it, all codes are listed.
    """
    if code is None:
        return Output(data=tuple(CODES.values()), text=_print_codes)
    printed = _PRINTED.fullmatch(code.strip())
    wanted = (printed[1] if printed else code.strip()).upper()
    wanted = f"PC{wanted}" if wanted.isdigit() else wanted
    if wanted not in CODES:
        begun = [each for each in CODES if len(wanted) > len("PC") and each.startswith(wanted)]
        near = suggest(wanted.replace("O", "0"), CODES)
        if begun:
            fix = f"codes from {begun[0]} to {begun[-1]} begin so"
        elif near is None or num_slips(wanted.replace("O", "0"), near) > 1:
            fix = "`promptcache why` lists all codes"
        else:
            fix = f"did you mean {near}, {CODES[near].title}?"
        raise UsageMistake(f"there is no code '{code}'; {fix}")
    return Output(data=CODES[wanted], text=partial(_print_explanation, CODES[wanted]))


def _print_codes() -> None:
    """Print a line for each code, under the headings of their groups."""
    console = stdout()
    for number, (group, members) in enumerate(groupby(CODES.values(), key=lambda entry: entry.group)):
        console.print(Text(f"\n{group}" if number else group, style="bold"))
        for entry in members:
            console.print(Text("  ").append_text(_heading(entry, bold=False)))


def _print_explanation(entry: Code) -> None:
    """Print an explanation without its Markdown; examples are indented."""
    console, is_example = stdout(), False
    console.print(_heading(entry, bold=True))
    console.print()
    for line in entry.text.split("\n"):
        if line.startswith("```"):
            is_example = not is_example
        else:
            styled = Text(f"    {line}", style="cyan") if is_example else _styled(LINK.sub(r"\1", line))
            console.print(styled, soft_wrap=not console.is_terminal)


def _heading(entry: Code, *, bold: bool) -> Text:
    text = Text().append(entry.code, style=f"{'bold ' if bold else ''}{COLOURS[entry.severity]}")
    text.append(f"  {entry.title}", style="bold" if bold else "default")
    return text.append(" (warning)") if entry.severity is Severity.WARNING else text


def _styled(line: str) -> Text:
    """Show strong words in bold, and code in colour with its quotes."""
    text, start = Text(), 0
    for marked in _MARKED.finditer(line):
        text.append(line[start : marked.start()])
        if strong := marked["strong"]:
            text.append(strong, style="bold")
        else:
            text.append(marked[0], style="cyan")
        start = marked.end()
    return text.append(line[start:])
