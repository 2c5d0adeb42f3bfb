"""`promptcache bench`: the benchmarks and their options.

A report is printed as a table, or with --json as one line of JSON with every single run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from promptcache.bench.measure import Progress
from promptcache.bench.plot import NOTHING_VARIES
from promptcache.bench.quality_documents import CACHED, SETS, Way
from promptcache.bench.shapes import SHAPES
from promptcache.cli.completion import complete_schemas
from promptcache.cli.console import progress, show_loading
from promptcache.cli.engine import device_named
from promptcache.cli.exits import EnvironmentMissing, UsageMistake, ending
from promptcache.cli.options import FILE, CommandGroup, Size, json_option, model_option, prompt_argument
from promptcache.cli.output import write_text
from promptcache.cli.sources import Sources

if TYPE_CHECKING:
    from promptcache.bench.report import Report
    from promptcache.bench.workload import Sizes
    from promptcache.engine import Engine
    from promptcache.runtime import Model

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def number(name: str, default: int | None, words: str, *, most: int | None = None) -> Callable[[Decorated], Decorated]:
    """Return an option for a number from 1."""
    return click.option(name, metavar="N", type=click.IntRange(1, most), default=default, help=words)


def numbers(
    name: str, default: Sequence[int], words: str, *, most: int | None = None
) -> Callable[[Decorated], Decorated]:
    """Return an option for several such numbers, given once for each."""
    return click.option(name, metavar="N", type=click.IntRange(1, most), multiple=True, default=default, help=words)


def tokens_option(*default: int) -> Callable[[Decorated], Decorated]:
    """Return the option for the tokens of each module."""
    return numbers("--module-tokens", default, "Tokens of each module; give it several times to compare.")


def new_option(*default: int) -> Callable[[Decorated], Decorated]:
    """Return the option for the new tokens of the request."""
    return numbers("--new", default, "New tokens of the request; give it several times.")


def modules_option(default: int) -> Callable[[Decorated], Decorated]:
    """Return the option for the number of modules in a request."""
    return number("--modules", default, "Modules present in the request.")


def repeats_option(default: int) -> Callable[[Decorated], Decorated]:
    """Return the option for the number of rounds."""
    return number("--repeats", default, "Rounds that count; one more warms up.")


threads_option = number("--threads", None, "Threads of torch; default: as torch chooses.", most=512)


NO_MODEL = {"model": "none", "dtype": "none", "device": "none"}
"""The subject of a benchmark without a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A report and what was measured.

    Attributes:
        subject: Name, dtype and device of the model.
        hardware: The machine and the versions.
        drawing: The file of --plot.
    """

    report: Report
    subject: Mapping[str, str]
    hardware: Mapping[str, object]
    drawing: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSubject:
    """The model of a benchmark: a real one, or a published shape with random weights."""

    shape: str
    model: str | None
    dtype: str
    device: str
    threads: int | None
    progress: Progress

    @property
    def data(self) -> Mapping[str, str]:
        """Model or shape, dtype and device, for JSON."""
        return {"model": self.model or self.shape, "dtype": self.dtype, "device": self.device}

    def load(self) -> Model:
        """Load the model.

        Raises:
            UsageMistake: There is no such kind of device.
            EnvironmentMissing: The device is not there.
        """
        show_loading(self.progress, self.model or "demo")
        import torch

        from promptcache.bench.shapes import random_shape
        from promptcache.bench.ttft import set_threads
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
    """The progress bar of a benchmark, and the record of the documents that it reads."""

    progress: Progress
    sources: Sources


def benchmark(command: Callable[..., Measured]) -> Callable[..., None]:
    """Add --json and a progress bar to a benchmark, which gets a `Session` as its first argument."""

    @wraps(command)
    def written(as_json: bool, **own: object) -> None:
        with ending(as_json=as_json) as sources:
            with progress() as show:
                measured = command(Session(progress=show, sources=sources), **own)
            write_measured(measured, as_json=as_json)

    return json_option(written)


def measured(command: Callable[..., Report]) -> Callable[..., None]:
    """Add the options of the model to a benchmark, which gets a `BenchSubject` as its first argument."""

    @wraps(command)
    def with_subject(
        session: Session, shape: str, model: str | None, dtype: str, device: str, threads: int | None, **own: Any
    ) -> Measured:
        subject = BenchSubject(
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
    """Refuse a file that cannot be drawn before anything is measured."""
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
    """Refuse a plot without an axis before anything is measured.

    Args:
        path: The file of --plot.
        varied: Values of each option that can be the axis.

    Raises:
        UsageMistake: No option has two values.
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


def write_measured(measured: Measured, *, as_json: bool) -> None:
    """Write a report as a table, or as one line of JSON with every single run."""
    report = measured.report
    if as_json:
        data = {"bench": report.name, **measured.subject, "hardware": measured.hardware, "rows": report.rows}
        write_text(json.dumps(data) + "\n")
    else:
        from rich.table import Table

        from promptcache.cli.console import stdout

        table = Table(*report.columns, title=report.title)
        for cells in report.cells:
            table.add_row(*cells)
        stdout().print(table)
    if measured.drawing is not None:
        from promptcache.bench.plot import plot

        plot(report, measured.drawing)


@click.group("bench", cls=CommandGroup, no_args_is_help=True)
def command() -> None:
    """Measure Prompt Cache against what you would do instead."""


@command.command()
@measured
@modules_option(8)
@tokens_option(512)
@new_option(1, 16, 64)
@adjacent_option
@uneven_option
@repeats_option(5)
@plot_option
def ttft(
    subject: BenchSubject,
    modules: int,
    module_tokens: tuple[int, ...],
    new: tuple[int, ...],
    adjacent: bool,
    even: bool,
    repeats: int,
    plot: Path | None,
) -> Report:
    """Time to first token of a planned request: linked modules against every alternative."""
    check_axis(plot, module_tokens, new)
    from promptcache.bench.ttft import compare_ttft

    return compare_ttft(
        subject.load(), _sizes(modules, module_tokens, new, adjacent, even), repeats, progress=subject.progress
    )


@command.command()
@measured
@modules_option(16)
@tokens_option(256, 1024)
@adjacent_option
@repeats_option(20)
def linking(
    subject: BenchSubject, modules: int, module_tokens: tuple[int, ...], adjacent: bool, repeats: int
) -> Report:
    """Linking alone: seconds, and resident memory that each linked request adds."""
    from promptcache.bench.ttft import measure_linking

    sizes = _sizes(modules, module_tokens, [16], adjacent)
    return measure_linking(subject.load(), sizes, repeats, progress=subject.progress)


@command.command()
@measured
@modules_option(8)
@tokens_option(512)
@uneven_option
@decoded_option
@repeats_option(5)
def decode(
    subject: BenchSubject, modules: int, module_tokens: tuple[int, ...], even: bool, tokens: int, repeats: int
) -> Report:
    """Time for one decoded token: over linked modules, and over a `DynamicCache` that holds the same."""
    from promptcache.bench.ttft import compare_decoding

    sizes = _sizes(modules, module_tokens, [16], adjacent=False, even=even)
    return compare_decoding(subject.load(), sizes, repeats, tokens, progress=subject.progress)


@command.command()
@measured
@number("--cached", 4096, "Cached tokens in all.")
@tokens_option(16, 64, 128, 256, 512)
@number("--new", 16, "New tokens of the request.")
@decoded_option
@repeats_option(5)
@plot_option
def small(
    subject: BenchSubject,
    cached: int,
    module_tokens: tuple[int, ...],
    new: int,
    tokens: int,
    repeats: int,
    plot: Path | None,
) -> Report:
    """Many small modules: read in place, or copied together first."""
    check_axis(plot, module_tokens)
    from promptcache.bench.small import compare_small

    return compare_small(subject.load(), cached, module_tokens, new, tokens, repeats, progress=subject.progress)


@command.command()
@measured
@modules_option(8)
@tokens_option(512)
@numbers("--requests", (20,), "Live requests; give it several times to compare.")
@plot_option
def memory(
    subject: BenchSubject, modules: int, module_tokens: tuple[int, ...], requests: tuple[int, ...], plot: Path | None
) -> Report:
    """Resident memory that live requests add: linked, and as a `DynamicCache` each."""
    check_axis(plot, module_tokens, requests)
    from promptcache.bench.many import compare_memory

    sizes = _sizes(modules, module_tokens, [16], adjacent=False)
    return compare_memory(subject.load(), sizes, requests, progress=subject.progress)


@command.command()
@measured
@modules_option(4)
@number("--module-tokens", 512, "Tokens of each module.")
@number("--rows", 32, "Requests in the batch.")
@decoded_option
@repeats_option(3)
def batch(subject: BenchSubject, modules: int, module_tokens: int, rows: int, tokens: int, repeats: int) -> Report:
    """Tokens per second of rows that share modules: linked together, and with copies of their own."""
    from promptcache.bench.many import compare_batch

    (sizes,) = _sizes(modules, [module_tokens], [16], adjacent=False)
    return compare_batch(subject.load(), sizes, rows, tokens, repeats, progress=subject.progress)


@command.command()
@measured
@modules_option(8)
@tokens_option(128, 512)
@repeats_option(3)
def encode(subject: BenchSubject, modules: int, module_tokens: tuple[int, ...], repeats: int) -> Report:
    """Encoding a schema's modules against plain prefill of equally long texts."""
    from promptcache.bench.many import compare_encoding

    sizes = _sizes(modules, module_tokens, [1], adjacent=True)
    return compare_encoding(subject.load(), sizes, repeats, progress=subject.progress)


@command.command()
@measured
@modules_option(8)
@tokens_option(512)
@new_option(16)
@adjacent_option
@repeats_option(5)
@click.option("--folder", metavar="DIR", type=FILE, help="Where files are made and removed; default: temporary ones.")
def disk(
    subject: BenchSubject,
    modules: int,
    module_tokens: tuple[int, ...],
    new: tuple[int, ...],
    adjacent: bool,
    repeats: int,
    folder: Path | None,
) -> Report:
    """Time to first token of a first request with KV on disk, from the call on: against plain prefill and memory."""
    from promptcache.bench.disk import compare_disk

    return compare_disk(
        subject.load(), _sizes(modules, module_tokens, new, adjacent), repeats, folder, progress=subject.progress
    )


@command.command()
@prompt_argument
@click.option("--schema", metavar="FILE", required=True, help="Its schema.", shell_complete=complete_schemas)
@model_option()
@repeats_option(10)
@threads_option
@benchmark
def prompt(session: Session, prompt: str, schema: str, model: str, repeats: int, threads: int | None) -> Measured:
    """Time to first token of your own prompt, from the call on: cached against plain prefill of the same tokens.

    PROMPT is a prompt file; - is standard input.
    """
    from promptcache.cli.files import checked_schema, parsed_prompt, read
    from promptcache.language import resolve_prompt

    document, checked = read(prompt, session.sources), checked_schema(read(schema, session.sources))
    resolve_prompt(parsed_prompt(document), checked)  # before a model is loaded
    from promptcache.bench.prompt import compare_prompt
    from promptcache.bench.ttft import set_threads
    from promptcache.engine import Engine

    set_threads(threads)
    show_loading(session.progress, model)
    engine = Engine.from_pretrained(model)
    engine.add_schema(checked.source)
    source = document.path or document.data.decode("utf-8-sig")
    return _measured(compare_prompt(engine, source, repeats, session.progress), model, engine)


@command.command()
@click.option("--set", "sets", type=click.Choice(SETS), multiple=True, help="Of questions; default: all.")
@number("--count", 100, "Questions of each set.")
@click.option("--seed", type=int, default=0, help="Of documents and questions.")
@model_option()
@ways_option
@click.option("--instruction", default="", help="What every document says first.")
@repeats_option(10)
@threads_option
@benchmark
def quality(
    session: Session,
    sets: tuple[str, ...],
    count: int,
    seed: int,
    model: str,
    ways: tuple[str, ...],
    instruction: str,
    repeats: int,
    threads: int | None,
) -> Measured:
    """Right answers, and distance from plain prefill: of modules apart, of a scaffold over them, of quantized KV."""
    from promptcache.bench.quality import QualitySettings, compare_quality
    from promptcache.bench.ttft import set_threads
    from promptcache.engine import Engine

    set_threads(threads)
    show_loading(session.progress, model)
    engine = Engine.from_pretrained(model)
    settings = QualitySettings(
        sets=sets or tuple(SETS),
        count=count,
        seed=seed,
        ways=[Way(way) for way in ways],
        instruction=instruction,
        repeats=repeats,
    )
    return _measured(compare_quality(engine, settings, session.progress), model, engine)


@command.command()
@numbers("--modules", (10, 100, 1000, 2000, 10000), "Modules of the schema; several times to compare.", most=100_000)
@number("--named", 20, "Modules that the prompt names.")
@repeats_option(20)
@benchmark
def plan(session: Session, modules: tuple[int, ...], named: int, repeats: int) -> Measured:
    """Parsing, checking and planning one prompt, in schemas of different sizes."""
    from promptcache.bench.many import measure_planning
    from promptcache.bench.report import hardware

    report = measure_planning(modules, named, repeats, session.progress)
    return Measured(report=report, subject=NO_MODEL, hardware=hardware())


@command.command()
@number("--modules", 2000, "Modules of the generated schema.")
@click.option("--rules", metavar="N", type=click.IntRange(min=0), default=500, help="Rules of it.")
@click.option("--size", metavar="SIZE", type=Size(), default="1 MB", help="Of its file.")
@repeats_option(5)
@benchmark
def check(session: Session, modules: int, rules: int, size: int, repeats: int) -> Measured:
    """The whole command `promptcache check`, in a process of its own: on the starter schema, and on a generated one."""
    from promptcache.bench.checking import Document, measure_checking
    from promptcache.bench.generated import generated_schema
    from promptcache.bench.report import machine
    from promptcache.cli.new import starter

    documents = (
        Document(name="starter", text=starter("starter", None).schema),
        Document(
            name=f"{modules:,} modules, {rules:,} rules",
            text=generated_schema(modules, rules, size),
            data={"modules": modules, "rules": rules},
        ),
    )
    report = measure_checking(documents, repeats, session.progress)
    return Measured(report=report, subject=NO_MODEL, hardware=machine())


def _measured(report: Report, name: str, engine: Engine) -> Measured:
    """Return a report with its subject and hardware."""
    from promptcache.bench.report import hardware

    shape = engine.model.shape
    subject = {"model": name, "dtype": str(shape.dtype).removeprefix("torch."), "device": str(shape.device)}
    return Measured(report=report, subject=subject, hardware=hardware())


def _sizes(
    modules: int, module_tokens: Sequence[int], new: Sequence[int], adjacent: bool, even: bool = True
) -> list[Sizes]:
    from promptcache.bench.workload import Sizes

    return [
        Sizes(num_modules=modules, module_tokens=tokens, new_tokens=count, adjacent=adjacent, uneven=not even)
        for tokens in module_tokens
        for count in new
    ]
