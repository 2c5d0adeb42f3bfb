"""`promptcache bench`: the options of the benchmarks, and how their reports are written.

Comes in: sizes, and what to measure on. Goes out: a table for people, then one JSON line with everything in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from promptcache.bench.quality_documents import SETS
from promptcache.cli.bench_options import (
    adjacent_option,
    decoded_option,
    device_option,
    measured,
    modules_option,
    new_option,
    number,
    numbers,
    repeats_option,
    threads_option,
    tokens_option,
)
from promptcache.cli.exits import UsageMistake, ending
from promptcache.cli.options import CommandGroup
from promptcache.cli.output import tell, write_text

if TYPE_CHECKING:
    from promptcache.bench.report import Report
    from promptcache.bench.workload import Sizes
    from promptcache.runtime.hf.model import Model


@click.group("bench", cls=CommandGroup, no_args_is_help=True)
def command() -> None:
    """Measure Prompt Cache against what you would do instead."""


@command.command()
@measured
@device_option
@modules_option(8)
@tokens_option(512)
@new_option(1, 16, 64)
@adjacent_option
@repeats_option(5)
@threads_option
def ttft(
    shape: str,
    model: str | None,
    dtype: str,
    device: str,
    modules: int,
    module_tokens: tuple[int, ...],
    new: tuple[int, ...],
    adjacent: bool,
    repeats: int,
    threads: int | None,
) -> None:
    """Time to first token of a planned request: linked modules against every alternative."""
    with ending(as_json=False):
        from promptcache.bench.ttft import compare_ttft

        measured = _load(shape, model, dtype, device, threads)
        _write(compare_ttft(measured, _sizes(modules, module_tokens, new, adjacent), repeats), model or shape, dtype)


@command.command()
@measured
@device_option
@modules_option(16)
@tokens_option(256, 1024)
@adjacent_option
@repeats_option(20)
@threads_option
def linking(
    shape: str,
    model: str | None,
    dtype: str,
    device: str,
    modules: int,
    module_tokens: tuple[int, ...],
    adjacent: bool,
    repeats: int,
    threads: int | None,
) -> None:
    """Linking by itself: seconds, and resident memory that each linked request adds."""
    with ending(as_json=False):
        from promptcache.bench.ttft import measure_linking

        measured = _load(shape, model, dtype, device, threads)
        sizes = _sizes(modules, module_tokens, [16], adjacent)
        _write(measure_linking(measured, sizes, repeats), model or shape, dtype)


@command.command()
@measured
@device_option
@modules_option(8)
@tokens_option(512)
@decoded_option
@repeats_option(5)
@threads_option
def decode(
    shape: str,
    model: str | None,
    dtype: str,
    device: str,
    modules: int,
    module_tokens: tuple[int, ...],
    tokens: int,
    repeats: int,
    threads: int | None,
) -> None:
    """Time for one decoded token: over linked modules, and over a `DynamicCache` that holds the same."""
    with ending(as_json=False):
        from promptcache.bench.ttft import compare_decoding

        measured = _load(shape, model, dtype, device, threads)
        sizes = _sizes(modules, module_tokens, [16], adjacent=False)
        _write(compare_decoding(measured, sizes, repeats, tokens), model or shape, dtype)


@command.command()
@measured
@modules_option(8)
@tokens_option(512)
@number("--requests", 20, "Live requests.")
def memory(
    shape: str, model: str | None, dtype: str, modules: int, module_tokens: tuple[int, ...], requests: int
) -> None:
    """Resident memory that live requests add: linked, and as a `DynamicCache` each."""
    with ending(as_json=False):
        from promptcache.bench.many import compare_memory

        measured = _load(shape, model, dtype, "cpu", None)
        sizes = _sizes(modules, module_tokens, [16], adjacent=False)
        _write(compare_memory(measured, sizes, requests), model or shape, dtype)


@command.command()
@measured
@device_option
@modules_option(4)
@number("--module-tokens", 512, "Tokens of each module.")
@number("--rows", 32, "Requests in the batch.")
@decoded_option
@repeats_option(3)
@threads_option
def batch(
    shape: str,
    model: str | None,
    dtype: str,
    device: str,
    modules: int,
    module_tokens: int,
    rows: int,
    tokens: int,
    repeats: int,
    threads: int | None,
) -> None:
    """Tokens per second of rows that share modules: linked together, and with copies of their own."""
    with ending(as_json=False):
        from promptcache.bench.many import compare_batch

        measured = _load(shape, model, dtype, device, threads)
        (sizes,) = _sizes(modules, [module_tokens], [16], adjacent=False)
        _write(compare_batch(measured, sizes, rows, tokens, repeats), model or shape, dtype)


@command.command()
@measured
@device_option
@modules_option(8)
@tokens_option(128, 512)
@repeats_option(3)
@threads_option
def encode(
    shape: str,
    model: str | None,
    dtype: str,
    device: str,
    modules: int,
    module_tokens: tuple[int, ...],
    repeats: int,
    threads: int | None,
) -> None:
    """Encoding a schema's modules against plain prefill of equally long texts."""
    with ending(as_json=False):
        from promptcache.bench.many import compare_encoding

        measured = _load(shape, model, dtype, device, threads)
        sizes = _sizes(modules, module_tokens, [1], adjacent=True)
        _write(compare_encoding(measured, sizes, repeats), model or shape, dtype)


@command.command()
@numbers("--modules", (10, 100, 1000, 2000, 10000), "Modules of the schema; several times to compare.")
@number("--named", 20, "Modules that the prompt names.")
@repeats_option(20)
def plan(modules: tuple[int, ...], named: int, repeats: int) -> None:
    """Parsing, checking and planning one prompt, in schemas of different sizes."""
    with ending(as_json=False):
        from promptcache.bench.many import measure_planning

        _write(measure_planning(modules, named, repeats), "none", "none")


@command.command()
@click.argument("prompt", metavar="PROMPT")
@click.option("--schema", metavar="FILE", required=True, help="Its schema.")
@click.option("--model", default="demo", help="demo, a model's folder, or a hub id.")
@repeats_option(10)
@threads_option
def prompt(prompt: str, schema: str, model: str, repeats: int, threads: int | None) -> None:
    """Time to first token of your own prompt, from the call on: cached against plain prefill of the same tokens."""
    with ending(as_json=False):
        from promptcache.bench.prompt import compare_prompt
        from promptcache.bench.ttft import set_threads
        from promptcache.engine import Engine

        set_threads(threads)
        engine = Engine.from_pretrained(model)
        engine.add_schema(schema)
        _write(compare_prompt(engine, prompt, repeats), model, str(engine.model.shape.dtype).removeprefix("torch."))


@command.command()
@click.option("--set", "sets", type=click.Choice(SETS), multiple=True, help="Of questions; default: all.")
@number("--count", 100, "Questions of each set.")
@click.option("--seed", type=int, default=0, help="Of documents and questions.")
@click.option("--model", default="demo", help="demo, a model's folder, or a hub id.")
@click.option("--instruction", default="", help="What every document says first.")
@repeats_option(10)
@threads_option
def quality(
    sets: tuple[str, ...], count: int, seed: int, model: str, instruction: str, repeats: int, threads: int | None
) -> None:
    """Right answers, and distance from plain prefill: of modules apart, and of a scaffold over them."""
    with ending(as_json=False):
        from promptcache.bench.quality import QualitySettings, compare_quality
        from promptcache.bench.ttft import set_threads
        from promptcache.engine import Engine

        set_threads(threads)
        engine = Engine.from_pretrained(model)
        settings = QualitySettings(
            sets=sets or tuple(SETS), count=count, seed=seed, instruction=instruction, repeats=repeats
        )
        report = compare_quality(engine, settings, lambda name, done, of: tell(f"{name}: {done} of {of}"))
        _write(report, model, str(engine.model.shape.dtype).removeprefix("torch."))


def _load(shape: str, model: str | None, dtype: str, device: str, threads: int | None) -> Model:
    import torch

    from promptcache.bench.shapes import SHAPES, random_shape
    from promptcache.bench.ttft import set_threads
    from promptcache.runtime.hf.load import load_model
    from promptcache.runtime.hf.model import Model

    set_threads(threads)
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise UsageMistake(f"--dtype {dtype}: not a dtype of torch")
    if model is not None:
        return load_model(model, device=device, dtype=kind)[0]
    if shape not in SHAPES:
        raise UsageMistake(f"--shape {shape}: known are {', '.join(SHAPES)}")
    return Model(random_shape(shape, kind, torch.device(device)))


def _sizes(modules: int, module_tokens: Sequence[int], new: Sequence[int], adjacent: bool) -> list[Sizes]:
    from promptcache.bench.workload import Sizes

    return [
        Sizes(num_modules=modules, module_tokens=tokens, new_tokens=count, adjacent=adjacent)
        for tokens in module_tokens
        for count in new
    ]


def _write(report: Report, model: str, dtype: str) -> None:
    from rich.table import Table

    from promptcache.bench.report import hardware
    from promptcache.cli.console import stdout

    table = Table(*report.columns, title=report.title)
    for cells in report.cells:
        table.add_row(*cells)
    stdout().print(table)
    data = {"bench": report.name, "model": model, "dtype": dtype, "hardware": hardware(), "rows": report.rows}
    write_text(json.dumps(data) + "\n")
