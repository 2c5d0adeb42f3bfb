"""`promptcache bench`: the benchmarks and their options.

Comes in: sizes, and what to measure on. Goes out: a table for people, or one line of JSON with everything in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptcache.bench.quality_documents import SETS, Way
from promptcache.cli.bench_documents import check, plan
from promptcache.cli.bench_options import (
    Session,
    Subject,
    adjacent_option,
    benchmark,
    check_axis,
    decoded_option,
    measured,
    modules_option,
    new_option,
    number,
    numbers,
    plot_option,
    repeats_option,
    threads_option,
    tokens_option,
    uneven_option,
    ways_option,
)
from promptcache.cli.bench_output import Measured
from promptcache.cli.completion import complete_schemas
from promptcache.cli.console import show_loading
from promptcache.cli.options import FILE, CommandGroup, model_option, prompt_argument

if TYPE_CHECKING:
    from promptcache.bench.report import Report
    from promptcache.bench.workload import Sizes
    from promptcache.engine import Engine


@click.group("bench", cls=CommandGroup, no_args_is_help=True)
def command() -> None:
    """Measure Prompt Cache against what you would do instead."""


command.add_command(plan)
command.add_command(check)


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
    subject: Subject,
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
def linking(subject: Subject, modules: int, module_tokens: tuple[int, ...], adjacent: bool, repeats: int) -> Report:
    """Linking by itself: seconds, and resident memory that each linked request adds."""
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
    subject: Subject, modules: int, module_tokens: tuple[int, ...], even: bool, tokens: int, repeats: int
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
    subject: Subject,
    cached: int,
    module_tokens: tuple[int, ...],
    new: int,
    tokens: int,
    repeats: int,
    plot: Path | None,
) -> Report:
    """Many small modules: each read where it rests, or copied together first."""
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
    subject: Subject, modules: int, module_tokens: tuple[int, ...], requests: tuple[int, ...], plot: Path | None
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
def batch(subject: Subject, modules: int, module_tokens: int, rows: int, tokens: int, repeats: int) -> Report:
    """Tokens per second of rows that share modules: linked together, and with copies of their own."""
    from promptcache.bench.many import compare_batch

    (sizes,) = _sizes(modules, [module_tokens], [16], adjacent=False)
    return compare_batch(subject.load(), sizes, rows, tokens, repeats, progress=subject.progress)


@command.command()
@measured
@modules_option(8)
@tokens_option(128, 512)
@repeats_option(3)
def encode(subject: Subject, modules: int, module_tokens: tuple[int, ...], repeats: int) -> Report:
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
    subject: Subject,
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


def _measured(report: Report, name: str, engine: Engine) -> Measured:
    """Return a report with what it was measured on."""
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
