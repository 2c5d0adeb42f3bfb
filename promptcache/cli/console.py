"""Consoles for styled text, and progress bars.

This file imports rich, so it is imported only to print styled text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from promptcache.cli.output import harmless, repaired_text, tell
from promptcache.diagnostics import Diagnostic, ExcerptPart, Severity, excerpt_pieces
from promptcache.progress import Progress

if TYPE_CHECKING:
    from promptcache.layout import Plan

COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_STYLES = {
    ExcerptPart.MESSAGE: "bold",
    ExcerptPart.FRAME: "blue",
    ExcerptPart.PLAIN: "",
    ExcerptPart.RELATED_MARK: "bold blue",
    ExcerptPart.HELP: "green",
}
REUSED, NEW = "green", "bold yellow"
"""Styles of tokens."""

_UNBOUNDED = 1 << 16  # columns: text on a pipe is not wrapped
_USUAL = 80
LINE_S = 10.0
"""Seconds between lines of progress where there is no terminal."""


class _Console(Console):
    """A console that raises on a closed pipe and removes control characters from text on a terminal."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit by itself

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(harmless(text) if self.is_terminal and control is None else text, style, control)


def stdout() -> Console:
    """Return a console for data."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return a console for everything else."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    console = _Console(file=stream, highlight=False, width=None if stream.isatty() else _UNBOUNDED)
    if console.width < 1:  # COLUMNS=0
        console.width = _USUAL
    return console


def print_lines(lines: Iterable[str | Text], console: Console | None = None) -> None:
    """Print lines without wrapping them, by default to stdout."""
    console = console or stdout()
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def print_diagnostics(diagnostics: Iterable[Diagnostic], *, beside: bool = False) -> None:
    """Print diagnostics with their source lines to stdout, or with `beside` to stderr."""
    sys.stdout.flush()
    console = stderr() if beside else stdout()
    for diagnostic in diagnostics:
        console.print(diagnostic_text(diagnostic), soft_wrap=True)


def diagnostic_text(diagnostic: Diagnostic) -> Text:
    """Return the excerpt of a diagnostic in colour; each line ends with a newline."""
    bold = f"bold {COLOURS[diagnostic.severity]}"
    text = Text()
    for piece in excerpt_pieces(diagnostic):
        text.append(piece.text, style=_STYLES.get(piece.part, bold))
    return text


def plan_line(plan: Plan, head: str, reused: str) -> Text:
    """Return the counts of a plan after `head`; `reused` has the words for the reused tokens."""
    new = f"{plan.num_new_tokens:,} new{repaired_text(plan.num_repaired_tokens)}"
    line = Text(head).append(reused, style=REUSED).append(", ").append(new, style=NEW)
    return line.append(f" · {plan.level} · the answer starts at position {plan.stop:,}")


@contextmanager
def progress() -> Iterator[Progress]:
    """Yield a function that shows a progress bar if stdout and stderr are a terminal; it is removed at the end.

    Otherwise it writes a line to stderr every `LINE_S` seconds.
    """
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        last = time.monotonic()

        def tell_step(what: str, done: int, total: int | None) -> None:
            nonlocal last
            if time.monotonic() - last >= LINE_S:
                last = time.monotonic()
                tell(f"{what}: {done:,} of {total:,}" if total else what)

        yield tell_step
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"))
    bars = Bars(*columns, TimeElapsedColumn(), console=stderr(), transient=True)
    task = bars.add_task("", total=None, count="")

    def show(what: str, done: int, total: int | None) -> None:
        bars.update(task, description=what, completed=done, total=total, count=f"{done:,}/{total:,}" if total else "")
        bars.start()  # shows it at once

    try:
        yield show
    finally:
        bars.stop()


def show_loading(show: Progress, model: str) -> None:
    """Show that a model is loading. Downloads and large folders show bars of transformers, which ours would disturb."""
    from promptcache.tokenizer import loads_quickly, local_folder

    folder = local_folder(model)
    if folder is not None and loads_quickly(folder):
        show("loading the model", 0, None)
