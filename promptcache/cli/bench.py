"""`promptcache bench`: compares Prompt Cache with alternatives, and prints a table or one line of JSON.

Torch is imported inside the commands, because shell completion and `--help` load this file too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from promptcache.cli.console import progress, show_loading
from promptcache.cli.exits import ending
from promptcache.cli.groups import CommandGroup
from promptcache.cli.options import json_option, model_option
from promptcache.cli.output import write_text
from promptcache.progress import Progress
from promptcache.timing import Samples, hardware, interleave

if TYPE_CHECKING:
    from promptcache.bench.alternatives import Alternative
    from promptcache.bench.request import PlannedRequest, RequestSizes
    from promptcache.model import Model

_Loader: TypeAlias = Callable[[], "Model"]
_Measured: TypeAlias = tuple["RequestSizes", Mapping[str, Samples]]


class BenchTable(NamedTuple):
    """A table, and its rows with the seconds of each run, for JSON."""

    title: str
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    rows: Sequence[Mapping[str, Any]]


def load_chosen(model: str, dtype: str, device: str, threads: int | None, pack: str) -> Model:
    """Load the model that options name."""
    import torch

    from promptcache.model import load_model

    if threads is not None:
        torch.set_num_threads(threads)
    packed = {"auto": None, "all": True, "none": False}[pack]
    return load_model(model, device=device, dtype=getattr(torch, dtype), pack=packed)[0]


def benchmark(command: Callable[..., BenchTable]) -> Callable[..., None]:
    """Add `--json` and the options of the model. The command takes a loader of it and a progress callback first."""

    @wraps(command)
    def measured(as_json: bool, model: str, dtype: str, device: str, threads: int | None, pack: str, **own: Any) -> Any:
        with ending(as_json=as_json):
            with progress() as show:
                show_loading(show, model)
                report = command(partial(load_chosen, model, dtype, device, threads, pack), show, **own)
            facts = {"bench": command.__name__, "model": model, "dtype": dtype, "device": device, "pack": pack}
            _write(report, facts, as_json=as_json)

    packs = click.Choice(["auto", "all", "none"])
    dtypes = click.Choice(["float32", "bfloat16", "float16", "float64"])
    found: Callable[..., Any] = json_option(measured)
    for option in (
        number_option("--threads", None, "Threads of torch; default: torch's own choice.", most=512),
        click.option(
            "--pack",
            type=packs,
            default="auto",
            help="Linear layers to pack for a CPU (see docs/python.md); auto: where it pays.",
        ),
        click.option("--device", metavar="DEVICE", default="cpu", help="cpu, cuda, cuda:1, ..."),
        click.option("--dtype", type=dtypes, default="float32", help="Dtype of weights and KV."),
        model_option(),
    ):
        found = option(found)
    return found


def number_option(name: str, default: int | None, words: str, *, most: int | None = None) -> Callable[..., Any]:
    return click.option(name, metavar="N", type=click.IntRange(1, most), default=default, help=words)


def numbers_option(name: str, default: Sequence[int], words: str) -> Callable[..., Any]:
    return click.option(name, metavar="N", type=click.IntRange(1), multiple=True, default=default, help=words)


modules_option = number_option("--modules", 8, "Modules in the request.")
module_tokens_option = numbers_option(
    "--module-tokens", (512,), "Tokens of each module; may be given several times, to compare sizes."
)
repeats_option = number_option("--repeats", 5, "Rounds that count; one more warms up.")


@click.group("bench", cls=CommandGroup, no_args_is_help=True)
def command() -> None:
    """Compare Prompt Cache with the alternatives on your machine."""


@command.command()
@benchmark
@modules_option
@module_tokens_option
@numbers_option("--new", (1, 16, 64), "New tokens of the request; may be given several times, to compare sizes.")
@repeats_option
def ttft(
    load: _Loader,
    show: Progress,
    modules: int,
    module_tokens: tuple[int, ...],
    new: tuple[int, ...],
    repeats: int,
) -> BenchTable:
    """Time to first token of a planned request: linked modules against every alternative."""
    from promptcache.bench.alternatives import BASELINE, first_token

    measured = list(_measure(load, show, product([modules], module_tokens, new), first_token, repeats))
    cells = []
    for sizes, samples in measured:
        baseline = samples[BASELINE].median
        times = (
            f"{each.median_ms:.1f}" + ("" if name == BASELINE else f" ({baseline / each.median:.1f}x)")
            for name, each in samples.items()
        )
        cells.append((f"{sizes.cached_tokens:,}", str(sizes.new_tokens), *times))
    return BenchTable(
        title=f"TTFT in ms, median of {repeats} rounds (times faster than {BASELINE})",
        columns=("cached", "new", *measured[0][1]),
        cells=cells,
        rows=[_row(*each) for each in measured],
    )


@command.command()
@benchmark
@modules_option
@module_tokens_option
@number_option("--tokens", 16, "Tokens decoded after the prompt.")
@repeats_option
def decode(
    load: _Loader, show: Progress, modules: int, module_tokens: tuple[int, ...], tokens: int, repeats: int
) -> BenchTable:
    """Time of one decoded token: over linked modules, and over a `DynamicCache` with the same KV."""
    from promptcache.bench.alternatives import further_tokens

    make = partial(further_tokens, num_tokens=tokens)
    measured = list(_measure(load, show, product([modules], module_tokens, [16]), make, repeats))
    cells = []
    for sizes, samples in measured:
        copied, linked = (each.median_ms / tokens for each in samples.values())
        cells.append((f"{sizes.cached_tokens:,}", f"{copied:.1f}", f"{linked:.1f}", f"{copied / linked:.2f}x"))
    return BenchTable(
        title=f"ms for one decoded token, median of {repeats} rounds",
        columns=("cached", "DynamicCache", "prompt cache", "ratio"),
        cells=cells,
        rows=[{**_row(*each), "decoded_tokens": tokens} for each in measured],
    )


def _measure(
    load: _Loader,
    show: Progress,
    all_sizes: Iterator[tuple[int, int, int]],
    make: Callable[[Model, PlannedRequest], Mapping[str, Alternative]],
    repeats: int,
) -> Iterator[_Measured]:
    """Time all alternatives of each size in turn. The memory of one size is free before the next one is measured."""
    from promptcache.bench.request import RequestSizes, plan_request

    sizes = [RequestSizes(modules=each, module_tokens=length, new_tokens=new) for each, length, new in all_sizes]
    model = load()
    for each in sizes:
        alternatives = make(model, plan_request(model, each))
        yield each, interleave(alternatives, repeats, model.device, partial(show, each.title))


def _row(sizes: RequestSizes, samples: Mapping[str, Samples]) -> dict[str, Any]:
    return {**sizes.data, "seconds": {name: list(each.seconds) for name, each in samples.items()}}


def _write(report: BenchTable, facts: Mapping[str, str], *, as_json: bool) -> None:
    """Write a table, or one line of JSON with the seconds of each run."""
    if as_json:
        write_text(json.dumps({**facts, "hardware": hardware(), "rows": report.rows}) + "\n")
        return
    from rich.table import Table

    from promptcache.cli.console import stdout

    table = Table(*report.columns, title=report.title)
    for cells in report.cells:
        table.add_row(*cells)
    stdout().print(table)
