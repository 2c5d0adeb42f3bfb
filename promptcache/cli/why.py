"""`promptcache why`: explain a diagnostic code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
        found = tuple(CODES.values())
        return Output(data=found, text=partial(_print_codes, found))
    entry = explanation(code)
    return Output(data=entry, text=partial(_print_explanation, entry))


def explanation(words: str) -> Code:
    """Return a code, also for `401`, `pc401` and `error[PC401]`.

    Raises:
        UsageMistake: There is no such code.
    """
    printed = _PRINTED.fullmatch(words.strip())
    wanted = (printed[1] if printed else words.strip()).upper()
    wanted = f"PC{wanted}" if wanted.isdigit() else wanted
    if wanted not in CODES:
        raise UsageMistake(f"there is no code '{words}'; {_fix(wanted)}")
    return CODES[wanted]


def _fix(wanted: str) -> str:
    """Suggest a code, or how to find one."""
    begun = [code for code in CODES if len(wanted) > len("PC") and code.startswith(wanted)]
    if begun:
        return f"codes from {begun[0]} to {begun[-1]} begin so"
    near = suggest(wanted.replace("O", "0"), CODES)
    if near is None or num_slips(wanted.replace("O", "0"), near) > 1:
        return "`promptcache why` lists all codes"
    return f"did you mean {near}, {CODES[near].title}?"


def _print_codes(entries: Iterable[Code]) -> None:
    """Print a line for each code, under the headings of their groups."""
    console = stdout()
    for number, (group, members) in enumerate(groupby(entries, key=lambda entry: entry.group)):
        console.print(Text(f"\n{group}" if number else group, style="bold"))
        for entry in members:
            console.print(Text("  ").append_text(_heading(entry, bold=False)))


def _print_explanation(entry: Code) -> None:
    console = stdout()
    console.print(_heading(entry, bold=True))
    console.print()
    for line in _lines(entry.text):
        console.print(line, soft_wrap=not console.is_terminal)


def _heading(entry: Code, *, bold: bool) -> Text:
    text = Text().append(entry.code, style=f"{'bold ' if bold else ''}{COLOURS[entry.severity]}")
    text.append(f"  {entry.title}", style="bold" if bold else "default")
    return text.append(" (warning)") if entry.severity is Severity.WARNING else text


def _lines(markdown: str) -> Iterator[Text]:
    """Yield the lines of an explanation without Markdown; examples are indented."""
    is_example = False
    for line in markdown.split("\n"):
        if line.startswith("```"):
            is_example = not is_example
        else:
            yield Text(f"    {line}", style="cyan") if is_example else _styled(LINK.sub(r"\1", line))


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
