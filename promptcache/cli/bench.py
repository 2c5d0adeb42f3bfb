"""`promptcache bench`: the benchmarks and their options.

Comes in: sizes, and what to measure on. Goes out: a table for people, then one JSON line with everything in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptcache.bench.quality_documents import SETS, Way
from promptcache.cli.bench_documents import check, plan
from promptcache.cli.bench_options import (
    Subject,
    adjacent_option,
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
from promptcache.cli.bench_output import write_measured
from promptcache.cli.completion import complete_schemas
from promptcache.cli.exits import ending
from promptcache.cli.options import FILE, CommandGroup, model_option, prompt_argument
from promptcache.cli.output import tell

if TYPE_CHECKING:
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
) -> None:
    """Time to first token of a planned request: linked modules against every alternative."""
    with ending(as_json=False):
        check_axis(plot, module_tokens, new)
        from promptcache.bench.ttft import compare_ttft

        report = compare_ttft(subject.load(), _sizes(modules, module_tokens, new, adjacent, even), repeats)
        write_measured(report, subject.data, plot)


@command.command()
@measured
@modules_option(16)
@tokens_option(256, 1024)
@adjacent_option
@repeats_option(20)
def linking(subject: Subject, modules: int, module_tokens: tuple[int, ...], adjacent: bool, repeats: int) -> None:
    """Linking by itself: seconds, and resident memory that each linked request adds."""
    with ending(as_json=False):
        from promptcache.bench.ttft import measure_linking

        sizes = _sizes(modules, module_tokens, [16], adjacent)
        write_measured(measure_linking(subject.load(), sizes, repeats), subject.data)


@command.command()
@measured
@modules_option(8)
@tokens_option(512)
@uneven_option
@decoded_option
@repeats_option(5)
def decode(
    subject: Subject, modules: int, module_tokens: tuple[int, ...], even: bool, tokens: int, repeats: int
) -> None:
    """Time for one decoded token: over linked modules, and over a `DynamicCache` that holds the same."""
    with ending(as_json=False):
        from promptcache.bench.ttft import compare_decoding

        sizes = _sizes(modules, module_tokens, [16], adjacent=False, even=even)
        write_measured(compare_decoding(subject.load(), sizes, repeats, tokens), subject.data)


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
) -> None:
    """Many small modules: each read where it rests, or copied together first."""
    with ending(as_json=False):
        check_axis(plot, module_tokens)
        from promptcache.bench.small import compare_small

        report = compare_small(subject.load(), cached, module_tokens, new, tokens, repeats)
        write_measured(report, subject.data, plot)


@command.command()
@measured
@modules_option(8)
@tokens_option(512)
@numbers("--requests", (20,), "Live requests; give it several times to compare.")
@plot_option
def memory(
    subject: Subject, modules: int, module_tokens: tuple[int, ...], requests: tuple[int, ...], plot: Path | None
) -> None:
    """Resident memory that live requests add: linked, and as a `DynamicCache` each."""
    with ending(as_json=False):
        check_axis(plot, module_tokens, requests)
        from promptcache.bench.many import compare_memory

        sizes = _sizes(modules, module_tokens, [16], adjacent=False)
        write_measured(compare_memory(subject.load(), sizes, requests), subject.data, plot)


@command.command()
@measured
@modules_option(4)
@number("--module-tokens", 512, "Tokens of each module.")
@number("--rows", 32, "Requests in the batch.")
@decoded_option
@repeats_option(3)
def batch(subject: Subject, modules: int, module_tokens: int, rows: int, tokens: int, repeats: int) -> None:
    """Tokens per second of rows that share modules: linked together, and with copies of their own."""
    with ending(as_json=False):
        from promptcache.bench.many import compare_batch

        (sizes,) = _sizes(modules, [module_tokens], [16], adjacent=False)
        write_measured(compare_batch(subject.load(), sizes, rows, tokens, repeats), subject.data)


@command.command()
@measured
@modules_option(8)
@tokens_option(128, 512)
@repeats_option(3)
def encode(subject: Subject, modules: int, module_tokens: tuple[int, ...], repeats: int) -> None:
    """Encoding a schema's modules against plain prefill of equally long texts."""
    with ending(as_json=False):
        from promptcache.bench.many import compare_encoding

        sizes = _sizes(modules, module_tokens, [1], adjacent=True)
        write_measured(compare_encoding(subject.load(), sizes, repeats), subject.data)


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
) -> None:
    """Time to first token of a first request with KV on disk, from the call on: against plain prefill and memory."""
    with ending(as_json=False):
        from promptcache.bench.disk import compare_disk

        report = compare_disk(subject.load(), _sizes(modules, module_tokens, new, adjacent), repeats, folder)
        write_measured(report, subject.data)


@command.command()
@prompt_argument
@click.option("--schema", metavar="FILE", required=True, help="Its schema.", shell_complete=complete_schemas)
@model_option()
@repeats_option(10)
@threads_option
def prompt(prompt: str, schema: str, model: str, repeats: int, threads: int | None) -> None:
    """Time to first token of your own prompt, from the call on: cached against plain prefill of the same tokens.

    PROMPT is a prompt file; - is standard input.
    """
    with ending(as_json=False) as sources:
        from promptcache.cli.files import checked_schema, parsed_prompt, read
        from promptcache.language import resolve_prompt

        document, checked = read(prompt, sources), checked_schema(read(schema, sources))
        resolve_prompt(parsed_prompt(document), checked)  # before a model is loaded
        from promptcache.bench.prompt import compare_prompt
        from promptcache.bench.ttft import set_threads
        from promptcache.engine import Engine

        set_threads(threads)
        engine = Engine.from_pretrained(model)
        engine.add_schema(checked.source)
        report = compare_prompt(engine, document.path or document.data.decode("utf-8-sig"), repeats)
        write_measured(report, _data(model, engine))


@command.command()
@click.option("--set", "sets", type=click.Choice(SETS), multiple=True, help="Of questions; default: all.")
@number("--count", 100, "Questions of each set.")
@click.option("--seed", type=int, default=0, help="Of documents and questions.")
@click.option("--model", default="demo", help="demo, a model's folder, or a hub id.")
@ways_option
@click.option("--instruction", default="", help="What every document says first.")
@repeats_option(10)
@threads_option
def quality(
    sets: tuple[str, ...],
    count: int,
    seed: int,
    model: str,
    ways: tuple[str, ...],
    instruction: str,
    repeats: int,
    threads: int | None,
) -> None:
    """Right answers, and distance from plain prefill: of modules apart, of a scaffold over them, of quantized KV."""
    with ending(as_json=False):
        from promptcache.bench.quality import QualitySettings, compare_quality
        from promptcache.bench.ttft import set_threads
        from promptcache.engine import Engine

        set_threads(threads)
        engine = Engine.from_pretrained(model)
        settings = QualitySettings(
            sets=sets or tuple(SETS),
            count=count,
            seed=seed,
            ways=[Way(way) for way in ways],
            instruction=instruction,
            repeats=repeats,
        )
        report = compare_quality(engine, settings, lambda name, done, of: tell(f"{name}: {done} of {of}"))
        write_measured(report, _data(model, engine))


def _data(name: str, engine: Engine) -> Mapping[str, str]:
    """Return what was measured on, as `Subject.data` has it."""
    shape = engine.model.shape
    return {"model": name, "dtype": str(shape.dtype).removeprefix("torch."), "device": str(shape.device)}


def _sizes(
    modules: int, module_tokens: Sequence[int], new: Sequence[int], adjacent: bool, even: bool = True
) -> list[Sizes]:
    from promptcache.bench.workload import Sizes

    return [
        Sizes(num_modules=modules, module_tokens=tokens, new_tokens=count, adjacent=adjacent, uneven=not even)
        for tokens in module_tokens
        for count in new
    ]
