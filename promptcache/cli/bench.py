"""`promptcache bench`: the options of the benchmarks, and their tables.

Comes in: sizes, and what to measure on. Goes out: a table for people, then one JSON line with everything in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from promptcache.cli.exits import UsageMistake, ending
from promptcache.cli.render import stdout, write_text

if TYPE_CHECKING:
    from promptcache.bench.workload import Sizes
    from promptcache.runtime.hf.model import Model

bench = typer.Typer(name="bench", help="Measure Prompt Cache against what you would do instead.", no_args_is_help=True)

_Shape = Annotated[str, typer.Option(help="A published model shape with random weights.")]
_Model = Annotated[str | None, typer.Option(help="A model's folder or hub id instead of a shape.")]
_Dtype = Annotated[str, typer.Option(help="Of weights and KV: float32, bfloat16 or float16.")]
_Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
_Modules = Annotated[int, typer.Option(min=1, help="Modules present in the request.")]
_Tokens = Annotated[list[int], typer.Option(min=1, help="Tokens of each module; give it several times to compare.")]
_New = Annotated[list[int], typer.Option(min=1, help="New tokens of the request; give it several times.")]
_Adjacent = Annotated[bool, typer.Option(help="Whether the present modules are neighbours.")]
_Repeats = Annotated[int, typer.Option(min=1, help="Rounds that count; one more warms up.")]
_Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch.")]


@bench.command()
def ttft(
    shape: _Shape = "qwen2.5-0.5b",
    model: _Model = None,
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    modules: _Modules = 8,
    module_tokens: _Tokens = [512],  # noqa: B006 - typer copies it
    new: _New = [1, 16, 64],  # noqa: B006
    adjacent: _Adjacent = False,
    repeats: _Repeats = 5,
    threads: _Threads = None,
) -> None:
    """Time to first token of a planned request: linked modules against every alternative."""
    with ending(as_json=False):
        from promptcache.bench.alternatives import ALTERNATIVES
        from promptcache.bench.ttft import compare_ttft

        measured = _load(shape, model, dtype, device, threads)
        sizes = _sizes(modules, module_tokens, new, adjacent)
        comparisons = compare_ttft(measured, sizes, repeats, ALTERNATIVES)
        table = Table("cached", "new", *ALTERNATIVES, title=f"TTFT in ms, median of {repeats} (times plain prefill)")
        for each in comparisons:
            cells = (f"{1e3 * each.samples[name].median:.1f} ({each.ratio(name):.1f}x)" for name in ALTERNATIVES)
            table.add_row(f"{each.sizes.cached_tokens:,}", str(each.sizes.new_tokens), *cells)
        rows = [
            {**_size_data(each.sizes), "seconds": {name: list(each.samples[name].seconds) for name in ALTERNATIVES}}
            for each in comparisons
        ]
        _write(table, "ttft", model or shape, dtype, rows)


@bench.command()
def linking(
    shape: _Shape = "qwen2.5-0.5b",
    model: _Model = None,
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    modules: _Modules = 16,
    module_tokens: _Tokens = [256, 1024],  # noqa: B006
    adjacent: _Adjacent = False,
    repeats: _Repeats = 20,
    threads: _Threads = None,
) -> None:
    """Linking by itself: seconds, and resident memory that each linked request adds."""
    with ending(as_json=False):
        from promptcache.bench.ttft import measure_linking

        measured = _load(shape, model, dtype, device, threads)
        costs = measure_linking(measured, _sizes(modules, module_tokens, [16], adjacent), repeats)
        table = Table("cached", "segments", "linking ms", "resident KiB", title=f"Linking, median of {repeats}")
        for each in costs:
            resident = f"{each.resident_bytes / 1024:.1f}"
            cells = (str(each.num_segments), f"{1e3 * each.samples.median:.3f}", resident)
            table.add_row(f"{each.sizes.cached_tokens:,}", *cells)
        rows = [
            {
                **_size_data(each.sizes),
                "segments": each.num_segments,
                "seconds": list(each.samples.seconds),
                "resident_bytes": each.resident_bytes,
            }
            for each in costs
        ]
        _write(table, "linking", model or shape, dtype, rows)


@bench.command()
def prompt(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A prompt file.")],
    schema: Annotated[str, typer.Option(metavar="FILE", help="Its schema.")],
    model: Annotated[str, typer.Option(help="demo, a model's folder, or a hub id.")] = "demo",
    repeats: _Repeats = 10,
    threads: _Threads = None,
) -> None:
    """Time to first token of your own prompt, from the call on: cached against plain prefill of the same tokens."""
    with ending(as_json=False):
        from promptcache.bench.prompt import compare_prompt
        from promptcache.engine import Engine

        _set_threads(threads)
        engine = Engine.from_pretrained(model)
        engine.add_schema(schema)
        cost = compare_prompt(engine, prompt, repeats)
        table = Table("reused", "new", "cached ms", "plain ms", "ratio", title=f"TTFT, median of {repeats}")
        medians = (f"{1e3 * cost.cached.median:.1f}", f"{1e3 * cost.plain.median:.1f}", f"{cost.ratio:.1f}x")
        table.add_row(f"{cost.plan.num_reused_tokens:,}", str(cost.plan.num_new_tokens), *medians)
        row = {
            "reused_tokens": cost.plan.num_reused_tokens,
            "new_tokens": cost.plan.num_new_tokens,
            "seconds": {"cached": list(cost.cached.seconds), "plain": list(cost.plain.seconds)},
        }
        _write(table, "prompt", model, str(engine.model.hf.dtype), [row])


def _load(shape: str, model: str | None, dtype: str, device: str, threads: int | None) -> Model:
    import torch

    from promptcache.bench.shapes import SHAPES, random_shape
    from promptcache.runtime.hf.load import load_model
    from promptcache.runtime.hf.model import Model

    _set_threads(threads)
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise UsageMistake(f"--dtype {dtype}: not a dtype of torch")
    if model is not None:
        return load_model(model, device=device, dtype=kind)[0]
    if shape not in SHAPES:
        raise UsageMistake(f"--shape {shape}: known are {', '.join(SHAPES)}")
    return Model(random_shape(shape, kind, torch.device(device)))


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def _sizes(modules: int, module_tokens: list[int], new: list[int], adjacent: bool) -> list[Sizes]:
    from promptcache.bench.workload import Sizes

    return [
        Sizes(num_modules=modules, module_tokens=tokens, new_tokens=count, adjacent=adjacent)
        for tokens in module_tokens
        for count in new
    ]


def _size_data(sizes: Sizes) -> dict[str, Any]:
    return {
        "modules": sizes.num_modules,
        "module_tokens": sizes.module_tokens,
        "new_tokens": sizes.new_tokens,
        "adjacent": sizes.adjacent,
    }


def _write(table: Table, name: str, model: str, dtype: str, rows: list[dict[str, Any]]) -> None:
    from promptcache.bench.ttft import hardware

    stdout().print(table)
    write_text(json.dumps({"bench": name, "model": model, "dtype": dtype, "hardware": hardware(), "rows": rows}) + "\n")
