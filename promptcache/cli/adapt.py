"""`promptcache adapt`: trains an adapter for modules, with which cached answers are nearer to plain prefill."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptcache.cli.bench import set_threads
from promptcache.cli.completion import complete_schemas
from promptcache.cli.console import ShowProgress, print_lines, progress, show_loading
from promptcache.cli.engine import load_engine
from promptcache.cli.exits import UsageMistake
from promptcache.cli.files import read_schemas
from promptcache.cli.options import (
    FILE,
    Output,
    context_option,
    device_option,
    dtype_option,
    model_option,
    with_json,
)
from promptcache.cli.output import tell
from promptcache.cli.sources import Sources
from promptcache.cli.test import find_hypothesis
from promptcache.diagnostics import counted, millinats_text

if TYPE_CHECKING:
    from promptcache.adapt import AdaptReport

_DEFAULT_MINUTES = 60.0
_LINE_EVERY_S = 30.0


@click.command("adapt")
@click.argument("schemas", metavar="[SCHEMA...]", nargs=-1, shell_complete=complete_schemas)
@model_option()
@click.option(
    "--out", metavar="FOLDER", type=FILE, required=True, help="Folder of the adapter; a training in it goes on."
)
@click.option(
    "--texts",
    metavar="PATH",
    type=FILE,
    multiple=True,
    help="A text, or a folder of texts (.txt, .md, .rst), to cut into modules; repeat it for more.",
)
@click.option(
    "--minutes", metavar="N", type=click.FloatRange(0, min_open=True), help="Time of the training; default: 60."
)
@click.option(
    "--steps", metavar="N", type=click.IntRange(min=1), help="Length of the training in steps, instead of time."
)
@click.option("--rank", metavar="N", type=click.IntRange(min=1), default=16, help="Rank of the LoRA matrices.")
@click.option(
    "--learning-rate", metavar="X", type=click.FloatRange(0, min_open=True), default=1e-3, help="Highest learning rate."
)
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    default=2048,
    help="Longest prompt to learn from, with its answer and the contexts of its modules.",
)
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**63 - 1), default=0, help="Seed of prompts and weights.")
@device_option
@dtype_option
@click.option(
    "--threads", metavar="N", type=click.IntRange(1, 512), help="Threads of torch; default: one for each idle core."
)
@context_option
@with_json
def command(
    sources: Sources,
    schemas: tuple[str, ...],
    model: str,
    out: Path,
    texts: tuple[Path, ...],
    minutes: float | None,
    steps: int | None,
    rank: int,
    learning_rate: float,
    max_tokens: int,
    seed: int,
    device: str | None,
    dtype: str,
    threads: int | None,
) -> Output:
    """Train an adapter for modules, so that cached answers are nearer to plain prefill.

    SCHEMA is a schema file to train for; - is standard input. Without schemas, synthetic documents are learned from.
    """
    if minutes is not None and steps is not None:
        raise UsageMistake("--minutes and --steps are two ways to say how long the training is; leave one out")
    checked = read_schemas(schemas, sources)
    find_hypothesis("adapt draws prompts", "install it")  # keeps its files out of the working directory
    with _progress() as show:
        show_loading(show, model)
        from promptcache.adapt import AdaptSettings, adapt_model
        from promptcache.adapt.checkpoint import read_checkpoint
        from promptcache.adapt.sources import read_texts

        settings = AdaptSettings(
            minutes=None if steps else minutes or _DEFAULT_MINUTES,
            steps=steps,
            rank=rank,
            learning_rate=learning_rate,
            seed=seed,
            max_tokens=max_tokens,
        )
        read_checkpoint(out)  # refuses a folder with something else before the model is loaded
        found = [text for path in texts for text in read_texts(path)]
        set_threads(threads or idle_cores())
        engine = load_engine(model, device, dtype, pack=False, history_bytes=0)
        report = adapt_model(engine, out, schemas=checked, texts=found, settings=settings, progress=show)
    return Output(data={**report.data(), "model": model, "out": str(out)}, text=partial(_print, report, model, out))


def idle_cores() -> int:
    """Return the number of cores that are idle now, at least 1. Threads on busy cores wait for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, cores - round(busy))


@contextmanager
def _progress() -> Iterator[ShowProgress]:
    """Yield a function that shows a progress bar on a terminal, and lines elsewhere, as a training takes long."""
    if sys.stderr.isatty():
        with progress() as show:
            yield show
        return
    last: tuple[str, float] = "", 0.0

    def line(what: str, done: int, total: int | None) -> None:
        nonlocal last
        task, now = what.partition(",")[0].rstrip("0123456789 "), time.monotonic()
        if task != last[0] or now - last[1] >= _LINE_EVERY_S:
            last = task, now
            tell(f"{what} ({done:,}/{total:,})" if total else what)

    yield line


def _print(report: AdaptReport, model: str, out: Path) -> None:
    before, after = report.before, report.after
    rows = [
        ("KL of modular answers, millinats", millinats_text(before.divergence), millinats_text(after.divergence)),
        ("same token, %", f"{100 * before.agreement:.1f}", f"{100 * after.agreement:.1f}"),
        ("distance of KV, relative", f"{before.distance:.2f}", f"{after.distance:.2f}"),
    ]
    width = max(len(row[0]) for row in rows)
    print_lines(
        [
            f"{out}: {counted(report.num_steps, 'step')} with {counted(report.num_lessons, 'prompt')} in "
            f"{report.seconds / 60:.1f} minutes",
            f"{counted(after.num_prompts, 'held-out prompt'):<{width}}  before   after",
            *(f"{name:<{width}}  {first:>6}  {second:>6}" for name, first, second in rows),
            f"use it with --model {model} --adapter {out}",
        ]
    )
