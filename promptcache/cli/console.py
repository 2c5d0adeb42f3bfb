"""Consoles: where styled text goes. Only what prints styled text loads this file, for rich takes its time.

Comes in: styled text, or how far a command is. Goes out: text on a stream; colours and bars on a terminal only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from promptcache.cli.output import harmless

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and how much there is: None where that is not known."""

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


@contextmanager
def progress() -> Iterator[Progress]:
    """Yield what shows a bar on stderr from its first call on, if that is a terminal; the bar is removed at the end."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"))
    bars = Bars(*columns, TimeElapsedColumn(), console=stderr(), transient=True)
    task = bars.add_task("", total=None, count="")

    def show(what: str, done: int, total: int | None) -> None:
        bars.start()
        bars.update(task, description=what, completed=done, total=total, count=f"{done:,}/{total:,}" if total else "")

    try:
        yield show
    finally:
        bars.stop()


def show_loading(show: Progress, model: str) -> None:
    """Show that a model is being loaded; a download has bars of its own, which a second display would tear apart."""
    from promptcache.tokenizer import local_folder

    if local_folder(model) is not None:
        show("loading the model", 0, None)
