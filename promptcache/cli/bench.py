"""`promptcache bench`: the options of the benchmarks, and how their reports are written.

Comes in: sizes, and what to measure on. Goes out: a table for people, then one JSON line with everything in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from promptcache.cli.exits import UsageMistake, ending
from promptcache.cli.render import stdout, write_text

if TYPE_CHECKING:
    from promptcache.bench.report import Report
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
_Decoded = Annotated[int, typer.Option(min=1, help="Tokens decoded after the prompt.")]

_QWEN = "qwen2.5-0.5b"


@bench.command()
def ttft(
    shape: _Shape = _QWEN,
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
        from promptcache.bench.ttft import compare_ttft

        measured = _load(shape, model, dtype, device, threads)
        _write(compare_ttft(measured, _sizes(modules, module_tokens, new, adjacent), repeats), model or shape, dtype)


@bench.command()
def linking(
    shape: _Shape = _QWEN,
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
        sizes = _sizes(modules, module_tokens, [16], adjacent)
        _write(measure_linking(measured, sizes, repeats), model or shape, dtype)


@bench.command()
def decode(
    shape: _Shape = _QWEN,
    model: _Model = None,
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    modules: _Modules = 8,
    module_tokens: _Tokens = [512],  # noqa: B006
    tokens: _Decoded = 16,
    repeats: _Repeats = 5,
    threads: _Threads = None,
) -> None:
    """Time for one decoded token: over linked modules, and over a `DynamicCache` that holds the same."""
    with ending(as_json=False):
        from promptcache.bench.ttft import compare_decoding

        measured = _load(shape, model, dtype, device, threads)
        sizes = _sizes(modules, module_tokens, [16], adjacent=False)
        _write(compare_decoding(measured, sizes, repeats, tokens), model or shape, dtype)


@bench.command()
def memory(
    shape: _Shape = _QWEN,
    model: _Model = None,
    dtype: _Dtype = "float32",
    modules: _Modules = 8,
    module_tokens: _Tokens = [512],  # noqa: B006
    requests: Annotated[int, typer.Option(min=1, help="Live requests.")] = 20,
) -> None:
    """Resident memory that live requests add: linked, and as a `DynamicCache` each."""
    with ending(as_json=False):
        from promptcache.bench.many import compare_memory

        measured = _load(shape, model, dtype, "cpu", None)
        sizes = _sizes(modules, module_tokens, [16], adjacent=False)
        _write(compare_memory(measured, sizes, requests), model or shape, dtype)


@bench.command()
def batch(
    shape: _Shape = _QWEN,
    model: _Model = None,
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    modules: _Modules = 4,
    module_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each module.")] = 512,
    rows: Annotated[int, typer.Option(min=1, help="Requests in the batch.")] = 32,
    tokens: _Decoded = 16,
    repeats: _Repeats = 3,
    threads: _Threads = None,
) -> None:
    """Tokens per second of rows that share modules: linked together, and with copies of their own."""
    with ending(as_json=False):
        from promptcache.bench.many import compare_batch

        measured = _load(shape, model, dtype, device, threads)
        (sizes,) = _sizes(modules, [module_tokens], [16], adjacent=False)
        _write(compare_batch(measured, sizes, rows, tokens, repeats), model or shape, dtype)


@bench.command()
def encode(
    shape: _Shape = _QWEN,
    model: _Model = None,
    dtype: _Dtype = "float32",
    device: _Device = "cpu",
    modules: _Modules = 8,
    module_tokens: _Tokens = [128, 512],  # noqa: B006
    repeats: _Repeats = 3,
    threads: _Threads = None,
) -> None:
    """Encoding a schema's modules against plain prefill of equally long texts."""
    with ending(as_json=False):
        from promptcache.bench.many import compare_encoding

        measured = _load(shape, model, dtype, device, threads)
        sizes = _sizes(modules, module_tokens, [1], adjacent=True)
        _write(compare_encoding(measured, sizes, repeats), model or shape, dtype)


@bench.command()
def plan(
    modules: Annotated[list[int], typer.Option(min=1, help="Modules of the schema; several times to compare.")] = [  # noqa: B006
        10,
        100,
        1000,
        2000,
        10000,
    ],
    named: Annotated[int, typer.Option(min=1, help="Modules that the prompt names.")] = 20,
    repeats: _Repeats = 20,
) -> None:
    """Parsing, checking and planning one prompt, in schemas of different sizes."""
    with ending(as_json=False):
        from promptcache.bench.many import measure_planning

        _write(measure_planning(modules, named, repeats), "none", "none")


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
        from promptcache.bench.ttft import set_threads
        from promptcache.engine import Engine

        set_threads(threads)
        engine = Engine.from_pretrained(model)
        engine.add_schema(schema)
        _write(compare_prompt(engine, prompt, repeats), model, str(engine.model.shape.dtype).removeprefix("torch."))


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


def _sizes(modules: int, module_tokens: list[int], new: list[int], adjacent: bool) -> list[Sizes]:
    from promptcache.bench.workload import Sizes

    return [
        Sizes(num_modules=modules, module_tokens=tokens, new_tokens=count, adjacent=adjacent)
        for tokens in module_tokens
        for count in new
    ]


def _write(report: Report, model: str, dtype: str) -> None:
    from rich.table import Table

    from promptcache.bench.report import hardware

    table = Table(*report.columns, title=report.title)
    for cells in report.cells:
        table.add_row(*cells)
    stdout().print(table)
    data = {"bench": report.name, "model": model, "dtype": dtype, "hardware": hardware(), "rows": report.rows}
    write_text(json.dumps(data) + "\n")
