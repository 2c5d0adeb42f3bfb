"""Consoles: where styled text goes. Only what prints styled text loads this file, for rich takes its time.

Comes in: styled text. Goes out: text on a stream; colours on a terminal only, never with NO_COLOR.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from promptcache.cli.output import harmless

_UNBOUNDED = 1 << 16  # columns: what is piped is wrapped by nobody
_USUAL = 80


class _Console(Console):
    """A console that leaves a closed pipe to whoever ends the command, and a terminal to nobody but itself."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit by itself

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(harmless(text) if self.is_terminal and control is None else text, style, control)


def stdout() -> Console:
    """Return a console for data."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return a console for everything that is not data."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    console = _Console(file=stream, highlight=False, width=None if stream.isatty() else _UNBOUNDED)
    if console.width < 1:  # COLUMNS=0
        console.width = _USUAL
    return console
