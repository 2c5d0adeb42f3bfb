"""`promptcache bench`: compares Prompt Cache with alternatives, on the model and machine of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from promptcache.cli.console import progress, show_loading, stdout
from promptcache.cli.documents import Sources
from promptcache.cli.options import Decorated, Output, model_option, with_json
from promptcache.cli.settings import Value
from promptcache.diagnostics import whole
from promptcache.timing import Samples, hardware, interleave

if TYPE_CHECKING:
    from promptcache.bench.request import RequestSizes

_DECODE_NEW = 16  # new tokens of the request whose answer is decoded


def _number(
    name: str, default: int | tuple[int, ...] | None, words: str, *, most: int | None = None
) -> Callable[[Decorated], Decorated]:
    """Return an option with a number from 1 on, or with several if the default is a tuple."""
    several, kind = isinstance(default, tuple), Value(whole(1, most), name)
    return click.option(name, metavar="N", type=kind, default=default, multiple=several, help=words)


@click.command("bench")
@click.argument("what", metavar="ttft|decode", type=click.Choice(["ttft", "decode"]))
@model_option()
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "float64"]),
    default="float32",
    help="Dtype of weights and KV.",
)
@click.option("--device", metavar="DEVICE", default="cpu", help="cpu, cuda, cuda:1, ...")
@click.option(
    "--pack",
    type=click.Choice(["auto", "all", "none"]),
    default="auto",
    help="Linear layers to pack for a CPU; auto: where it pays.",
)
@_number("--threads", None, "Threads of torch; default: torch's own choice.", most=512)
@_number("--modules", 8, "Modules in the request.")
@_number("--module-tokens", (512,), "Tokens of each module; may be given several times, to compare.")
@_number("--new", (1, 16, 64), "New tokens of a request of ttft; may be given several times, to compare.")
@_number("--tokens", 16, "Tokens that decode measures after the prompt.")
@_number("--repeats", 5, "Rounds that count; one more warms up.")
@with_json
def command(
    _sources: Sources,
    what: str,
    model: str,
    dtype: str,
    device: str,
    pack: str,
    threads: int | None,
    modules: int,
    module_tokens: tuple[int, ...],
    new: tuple[int, ...],
    tokens: int,
    repeats: int,
) -> Output:
    """Compare Prompt Cache with the alternatives on your machine.

    ttft is the time to first token of a planned request: linked modules against every alternative. decode is the time
    of one decoded token: over linked modules, and over a `DynamicCache` with the same KV.
    """
    import torch

    from promptcache.bench.alternatives import first_token, further_tokens
    from promptcache.bench.request import RequestSizes, plan_request
    from promptcache.model import Model, load_model
    from promptcache.rows import choose_kernels, used_kernels

    all_sizes = [
        RequestSizes(modules=modules, module_tokens=length, new_tokens=each)
        for length, each in product(module_tokens, new if what == "ttft" else [_DECODE_NEW])
    ]
    with progress() as show:
        show_loading(show, model)
        if threads is not None:
            torch.set_num_threads(threads)
        loaded = Model(load_model(model, device=device, dtype=getattr(torch, dtype))[0])
        loaded.pack_weights({"auto": None, "all": True, "none": False}[pack])
        choose_kernels(loaded)
        measured = []
        for sizes in all_sizes:
            request = plan_request(loaded, sizes)
            calls = first_token(loaded, request) if what == "ttft" else further_tokens(loaded, request, tokens)
            measured.append((sizes, interleave(calls, repeats, loaded.device, partial(show, sizes.title))))
            del request, calls  # the memory of one size is free before the next one is measured
    facts: dict[str, Any] = {"bench": what, "model": model, "dtype": dtype, "device": device, "pack": pack}
    facts |= {"attention": used_kernels(loaded).value}
    facts |= {"decoded_tokens": tokens} if what == "decode" else {}
    rows = [
        {**sizes.data, "seconds": {name: list(each.seconds) for name, each in samples.items()}}
        for sizes, samples in measured
    ]
    table = _ttft_table(measured, repeats) if what == "ttft" else _decode_table(measured, repeats, tokens)
    return Output(data={**facts, "hardware": hardware(), "rows": rows}, text=partial(stdout().print, table))


def _ttft_table(measured: Sequence[tuple[RequestSizes, Mapping[str, Samples]]], repeats: int) -> Table:
    from promptcache.bench.alternatives import BASELINE

    title = f"TTFT in ms, median of {repeats} rounds (times faster than {BASELINE})"
    table = Table("cached", "new", *measured[0][1], title=title)
    for sizes, samples in measured:
        baseline = samples[BASELINE].median
        times = (
            f"{each.median_ms:.1f}" + ("" if name == BASELINE else f" ({baseline / each.median:.1f}x)")
            for name, each in samples.items()
        )
        table.add_row(f"{sizes.cached_tokens:,}", str(sizes.new_tokens), *times)
    return table


def _decode_table(
    measured: Sequence[tuple[RequestSizes, Mapping[str, Samples]]], repeats: int, num_decoded: int
) -> Table:
    title = f"ms for one decoded token, median of {repeats} rounds"
    table = Table("cached", "DynamicCache", "prompt cache", "ratio", title=title)
    for sizes, samples in measured:
        copied, linked = (each.median_ms / num_decoded for each in samples.values())
        table.add_row(f"{sizes.cached_tokens:,}", f"{copied:.1f}", f"{linked:.1f}", f"{copied / linked:.2f}x")
    return table
