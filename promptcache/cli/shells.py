"""Shells that complete: the scripts that make them ask, setting them up, and answering.

Comes in: the name of a shell, or what it asks in its environment. Goes out: a script, changed start files, or words.
What is offered is decided by each option; this file does not know it.
"""

from __future__ import annotations

import os
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from promptcache.cli.exits import ExitCode, UsageMistake

NAME = "promptcache"
COMPLETE = "_PROMPTCACHE_COMPLETE"
"""The variable that is set where a shell asks what could stand next."""

_SHELLS = ("bash", "zsh", "fish", "powershell")
_START_FILES = {"bash": ".bashrc", "zsh": ".zshrc"}


@add_completion_class
class _Bash(BashComplete):
    """Completion for bash, which takes `name=value` for three words and wants the value alone."""

    _typed = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(os.environ["COMP_WORDS"])
        place = int(os.environ["COMP_CWORD"])
        done = [*words[: place + 1], *([""] if place >= len(words) else [])]
        joined = done[:1]
        for before, word in pairwise(done):
            if word and (_breaks(word) or _breaks(before)):
                joined[-1] += word
            else:
                joined.append(word)
        self._typed = joined[-1]
        return joined[1:-1], self._typed

    def format_completion(self, item: CompletionItem[Any]) -> str:
        typed, equals, _ = self._typed.rpartition("=")
        return f"{item.type},{str(item.value).removeprefix(typed + equals)}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        mend = "set HOME, or write what --show-completion SHELL prints into your shell's start file"
        raise UsageMistake(f"there is no home folder: {mend}") from None


def _breaks(word: str) -> bool:
    return word != "" and not word.strip("=")


def complete(app: click.Command, asked: str) -> NoReturn:
    """Answer a shell that asks what could stand next, and exit; who asks without the rest of it is no shell."""
    try:
        sys.exit(shell_complete(app, {}, NAME, COMPLETE, asked))
    except (KeyError, ValueError):
        sys.exit(ExitCode.USAGE)


def script(app: click.Command, shell: str) -> str:
    """Return what a shell has to run to complete our commands.

    Raises:
        UsageMistake: we have none for this shell.
    """
    found = get_completion_class(shell) if shell in _SHELLS else None
    if found is None:
        raise UsageMistake(f"no completion for the shell '{shell}'; there is one for {', '.join(_SHELLS)}")
    return found(app, {}, NAME, COMPLETE).source()


def install(app: click.Command) -> list[str]:
    """Set up the shell that $SHELL names, and say what was done; doing it twice is doing it once.

    Raises:
        UsageMistake: it is not known which shell that is, or how it is set up.
    """
    shell = Path(os.environ.get("SHELL", "")).name
    if shell != "fish" and shell not in _START_FILES:
        known = f"SHELL is '{shell}'" if shell else "SHELL is not set"
        raise UsageMistake(f"{known}: write what --show-completion SHELL prints into your shell's start file")
    home = _home()
    if shell == "fish":
        file = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "fish", "completions", f"{NAME}.fish")
    else:
        file = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share", NAME, f"completion.{shell}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script(app, shell), encoding="utf-8")
    told = [f"wrote {file}"]
    if shell in _START_FILES:
        start, line = home / _START_FILES[shell], f"source {shlex.quote(str(file))}"
        if line.encode() not in (start.read_bytes().splitlines() if start.exists() else []):
            with start.open("ab") as opened:
                opened.write(f"\n{line}\n".encode())
            told.append(f"added a line to {start}")
    return [*told, "start a new shell to complete with Tab"]
