"""Options that several benchmarks have.

Comes in: nothing. Goes out: decorators of click. This file knows no benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from promptcache.bench.measure import Progress
from promptcache.bench.plot import NOTHING_VARIES
from promptcache.bench.quality_documents import CACHED, Way
from promptcache.bench.shapes import SHAPES
from promptcache.cli.bench_output import Measured, write_measured
from promptcache.cli.console import progress, show_loading
from promptcache.cli.exits import EnvironmentMissing, UsageMistake, ending
from promptcache.cli.model_folder import DEMO
from promptcache.cli.options import json_option, model_option
from promptcache.cli.sources import Sources

if TYPE_CHECKING:
    from promptcache.bench.report import Report
    from promptcache.runtime import Model

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def number(name: str, default: int | None, words: str, *, most: int | None = None) -> Callable[[Decorated], Decorated]:
    """Return the option of a number from 1 on."""
    return click.option(name, metavar="N", type=click.IntRange(1, most), default=default, help=words)


def numbers(
    name: str, default: Sequence[int], words: str, *, most: int | None = None
) -> Callable[[Decorated], Decorated]:
    """Return the option of such numbers, given once for each."""
    return click.option(name, metavar="N", type=click.IntRange(1, most), multiple=True, default=default, help=words)


def tokens_option(*default: int) -> Callable[[Decorated], Decorated]:
    """Return the option of the tokens in each module."""
    return numbers("--module-tokens", default, "Tokens of each module; give it several times to compare.")


def new_option(*default: int) -> Callable[[Decorated], Decorated]:
    """Return the option of the request's new tokens."""
    return numbers("--new", default, "New tokens of the request; give it several times.")


def modules_option(default: int) -> Callable[[Decorated], Decorated]:
    """Return the option of how many modules a request has."""
    return number("--modules", default, "Modules present in the request.")


def repeats_option(default: int) -> Callable[[Decorated], Decorated]:
    """Return the option of how many rounds count."""
    return number("--repeats", default, "Rounds that count; one more warms up.")


threads_option = number("--threads", None, "Threads of torch; default: as torch chooses.", most=512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: a model, or a published shape with random weights, in a dtype, on a device, with threads."""

    shape: str
    model: str | None
    dtype: str
    device: str
    threads: int | None
    progress: Progress

    @property
    def data(self) -> Mapping[str, str]:
        """Which model or shape, in what dtype, on what device; for machines."""
        return {"model": self.model or self.shape, "dtype": self.dtype, "device": self.device}

    def load(self) -> Model:
        """Return the model.

        Raises:
            UsageMistake: No such kind of device.
            EnvironmentMissing: No such device here.
        """
        show_loading(self.progress, self.model or DEMO)
        import torch

        from promptcache.bench.shapes import random_shape
        from promptcache.bench.ttft import set_threads
        from promptcache.cli.answer import device_named
        from promptcache.runtime import Model, load_model

        set_threads(self.threads)
        dtype = getattr(torch, self.dtype)
        device = device_named(self.device) or torch.device("cpu")
        if self.model is not None:
            return load_model(self.model, device=device, dtype=dtype)[0]
        model = Model(random_shape(self.shape, dtype, device))
        model.pack_weights()
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What every benchmark is given: where its progress is shown, and where the documents go that it reads."""

    progress: Progress
    sources: Sources


def benchmark(command: Callable[..., Measured]) -> Callable[..., None]:
    """Add a bar and --json to a command that measures; it gets a `Session` before its options."""

    @wraps(command)
    def written(as_json: bool, **own: object) -> None:
        with ending(as_json=as_json) as sources:
            with progress() as show:
                measured = command(Session(progress=show, sources=sources), **own)
            write_measured(measured, as_json=as_json)

    return json_option(written)


def measured(command: Callable[..., Report]) -> Callable[..., None]:
    """Add the options of what is measured; the command gets them as one `Subject`, before its own."""

    @wraps(command)
    def with_subject(
        session: Session, shape: str, model: str | None, dtype: str, device: str, threads: int | None, **own: Any
    ) -> Measured:
        subject = Subject(
            shape=shape, model=model, dtype=dtype, device=device, threads=threads, progress=session.progress
        )
        report = command(subject, **own)
        from promptcache.bench.report import hardware

        return Measured(report=report, subject=subject.data, hardware=hardware(), drawing=own.get("plot"))

    found: Callable[..., Any] = with_subject
    for option in (
        threads_option,
        click.option("--device", default="cpu", help="cpu, cuda, ..."),
        click.option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16", "float16", "float64"]),
            default="float32",
            help="Of weights and KV.",
        ),
        model_option("demo, a model's folder, or a hub id instead of a shape.", default=None),
        click.option(
            "--shape",
            type=click.Choice(list(SHAPES)),
            default="qwen2.5-0.5b",
            help="A published model shape with random weights.",
        ),
    ):
        found = option(found)
    return benchmark(found)


def _drawable(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse what could not be drawn before hours are spent on measuring it."""
    if path is None:
        return None
    if path.suffix.lower() not in {".svg", ".png", ".pdf"}:
        raise click.BadParameter(f"'{path}' is no .svg, .png or .pdf file.")
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder '{path.parent}'.")
    if find_spec("matplotlib") is None:
        raise EnvironmentMissing("plots need matplotlib: pip install 'promptcache[plot]'")
    return path


def check_axis(path: Path | None, *varied: Sequence[int]) -> None:
    """Refuse a drawing in which nothing varies, before hours are spent on measuring it.

    Args:
        path: Of the drawing; None where none is wanted.
        varied: The values of each option that can be the axis.

    Raises:
        UsageMistake: None of them has two.
    """
    if path is not None and all(len(set(values)) < 2 for values in varied):
        raise UsageMistake(NOTHING_VARIES)


plot_option = click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_drawable,
    help="Draw it, too: an .svg, .png or .pdf file. Needs matplotlib.",
)
adjacent_option = click.option(
    "--adjacent/--no-adjacent", default=False, help="Whether the present modules are neighbours."
)
uneven_option = click.option(
    "--even/--uneven", "even", default=True, help="Whether all modules have one length, or each another."
)
decoded_option = number("--tokens", 16, "Tokens decoded after the prompt.")
ways_option = click.option(
    "--way",
    "ways",
    type=click.Choice([way.value for way in Way if way is not Way.PLAIN]),
    multiple=True,
    default=[way.value for way in CACHED],
    help="To serve documents, beside plain prefill; default: guaranteed, own, scaffold.",
)
