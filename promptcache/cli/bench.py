"""`promptcache bench`: compares Prompt Cache with alternatives, and prints a table or one line of JSON.

Torch is imported inside the commands, because shell completion and `--help` load this file too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from promptcache.bench.harness import BenchReport, Progress, hardware
from promptcache.bench.load import TargetName
from promptcache.bench.plot import plot
from promptcache.bench.shapes import SHAPES
from promptcache.cli.console import progress, show_loading
from promptcache.cli.exits import EnvironmentMissing, UsageMistake, ending
from promptcache.cli.options import CommandGroup, json_option, model_option
from promptcache.cli.output import write_text

if TYPE_CHECKING:
    import torch

    from promptcache.bench.workload import Sizes
    from promptcache.engine import Engine
    from promptcache.runtime import Model

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_TARGETS = [each.value for each in TargetName]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchModel:
    """The model that is measured: by name, or a published shape with random weights."""

    shape: str
    model: str | None
    dtype: str
    device: str
    threads: int | None
    pack: str
    progress: Progress

    @property
    def _pack(self) -> bool | None:
        return {"auto": None, "all": True, "none": False}[self.pack]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and KV."""
        import torch

        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def load(self) -> Model:
        """Load the model.

        Raises:
            UsageMistake: The kind of device does not exist.
            EnvironmentMissing: This machine has no such device.
        """
        show_loading(self.progress, self.model or "demo")
        import torch

        from promptcache.bench.shapes import random_shape
        from promptcache.cli.engine import device_named
        from promptcache.runtime import Model, load_model

        set_threads(self.threads)
        device = device_named(self.device) or torch.device("cpu")
        if self.model is not None:
            return load_model(self.model, device=device, dtype=self.torch_dtype, pack=self._pack)[0]
        model = Model(random_shape(self.shape, self.torch_dtype, device))
        model.pack_weights(self._pack)
        return model

    def load_engine(self, scratch: Path) -> tuple[Engine, Path]:
        """Load the model into an engine; return it and the model's folder. A shape is saved in `scratch`."""
        show_loading(self.progress, self.model or self.shape)
        from promptcache.bench.targets import save_shape
        from promptcache.cli.engine import load_engine
        from promptcache.tokenizer import local_folder

        set_threads(self.threads)
        if self.model is None:
            save_shape(self.shape, self.torch_dtype, scratch / "model")
            made = load_engine(str(scratch / "model"), self.device, self.dtype, pack=self._pack)
            return made, scratch / "model"
        engine = load_engine(self.model, self.device, self.dtype, pack=self._pack)
        if (folder := local_folder(self.model)) is not None:
            return engine, folder
        from huggingface_hub import snapshot_download

        return engine, Path(snapshot_download(self.model, local_files_only=True))  # downloaded for the engine


def benchmark(
    command: Callable[..., tuple[BenchReport, Mapping[str, str]]], draw: Callable[..., None] = plot
) -> Callable[..., None]:
    """Add a progress bar and `--json`; the command takes a `Progress`, and returns its report and the model's data.

    Args:
        draw: Plots the report for `--plot`.
    """

    @wraps(command)
    def written(as_json: bool, **own: Any) -> None:
        with ending(as_json=as_json):
            with progress() as show:
                report, model = command(show, **own)
            _write(report, model, as_json=as_json)
            if (path := own.get("plot")) is not None:
                draw(report, path, model=model, hardware=hardware())

    return json_option(written)


def with_model(command: Callable[..., BenchReport]) -> Callable[..., None]:
    """Add the options of the model; the command takes them as one `BenchModel` before its own options."""

    @wraps(command)
    def measured(
        show: Progress,
        shape: str,
        model: str | None,
        dtype: str,
        device: str,
        threads: int | None,
        pack: str,
        **own: Any,
    ) -> tuple[BenchReport, Mapping[str, str]]:
        chosen = BenchModel(
            shape=shape, model=model, dtype=dtype, device=device, threads=threads, pack=pack, progress=show
        )
        return command(chosen, **own), {"model": model or shape, "dtype": dtype, "device": device, "pack": pack}

    found: Callable[..., Any] = measured
    for option in (
        threads_option,
        click.option(
            "--pack",
            type=click.Choice(["auto", "all", "none"]),
            default="auto",
            help="Linear layers that are packed for a CPU; auto: those for which it pays.",
        ),
        click.option("--device", default="cpu", help="cpu, cuda, ..."),
        click.option(
            "--dtype",
            type=click.Choice(["float32", "bfloat16", "float16", "float64"]),
            default="float32",
            help="Of weights and KV.",
        ),
        model_option("demo, a model's folder, or a hub id, instead of a shape.", default=None),
        click.option(
            "--shape",
            type=click.Choice(list(SHAPES)),
            default="qwen2.5-0.5b",
            help="A published model shape with random weights.",
        ),
    ):
        found = option(found)
    return benchmark(found)


def number_option(
    name: str, default: int | None, words: str, *, most: int | None = None
) -> Callable[[Decorated], Decorated]:
    return click.option(name, metavar="N", type=click.IntRange(1, most), default=default, help=words)


def numbers_option(name: str, default: Sequence[int], words: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, metavar="N", type=click.IntRange(1), multiple=True, default=default, help=words)


def modules_option(default: int) -> Callable[[Decorated], Decorated]:
    return number_option("--modules", default, "Modules in the request.")


def module_tokens_option(*default: int) -> Callable[[Decorated], Decorated]:
    return numbers_option("--module-tokens", default, "Tokens of each module; repeat the option to compare sizes.")


def new_option(*default: int) -> Callable[[Decorated], Decorated]:
    return numbers_option("--new", default, "New tokens of the request; repeat the option to compare sizes.")


def repeats_option(default: int) -> Callable[[Decorated], Decorated]:
    return number_option("--repeats", default, "Rounds that count; one more warms up.")


def _check_plot(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the measurement starts."""
    if path is None:
        return None
    if path.suffix.lower() not in {".svg", ".png", ".pdf"}:
        raise click.BadParameter(f"'{path}' is no .svg, .png or .pdf file.")
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder '{path.parent}'.")
    if find_spec("matplotlib") is None:
        raise EnvironmentMissing("plots need matplotlib: pip install 'promptcache[plot]'")
    return path


def check_axis(path: Path | None, **varied: Sequence[int]) -> None:
    """Refuse a plot in which no size varies before the measurement starts. Sizes are given by the names of options."""
    if path is not None and all(len(set(values)) < 2 for values in varied.values()):
        names = " or ".join(f"--{name.replace('_', '-')}" for name in varied)
        raise UsageMistake(f"a plot needs an option given several times: {names}")


threads_option = number_option("--threads", None, "Threads of torch; default: torch's own choice.", most=512)
decoded_option = number_option("--tokens", 16, "Tokens decoded after the prompt.")
uneven_option = click.option("--uneven", is_flag=True, help="Give every module another length.")
count_launches_option = click.option(
    "--count-launches",
    is_flag=True,
    help="Measure nothing: count the kernels that a shape starts on a CUDA device. It needs none.",
)
plot_option = click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_check_plot,
    help="Also plot the report into an .svg, .png or .pdf file. Needs matplotlib.",
)


static_option = click.option(
    "--static",
    is_flag=True,
    help="Also measure a StaticCache in the pass that transformers compiles; always measured on a GPU.",
)


def is_static_measured(model: Model, *, asked: bool) -> bool:
    """Whether to measure a compiled pass.

    Raises:
        EnvironmentMissing: It was asked for and cannot be measured.
    """
    if not asked and model.device.type != "cuda":
        return False
    from promptcache.bench.alternatives import why_not_compiled

    reason = why_not_compiled(model)
    if reason is not None and asked:
        raise EnvironmentMissing(f"--static: {reason}")
    return reason is None


def check_counted(chosen: BenchModel, path: Path | None = None) -> None:
    """Refuse what counting of launches cannot use."""
    if chosen.model is not None:
        raise UsageMistake("--count-launches counts for a shape: give --shape instead of --model")
    if path is not None:
        raise UsageMistake("--count-launches measures no times, so that there is nothing to plot: leave out --plot")


def check_used(num_used: int, num_modules: int) -> None:
    if num_used > num_modules:
        raise UsageMistake(f"--used {num_used}: a schema has {num_modules} modules")


@click.group("bench", cls=CommandGroup, no_args_is_help=True)
def command() -> None:
    """Compare Prompt Cache with the alternatives on your machine."""


@command.command()
@with_model
@modules_option(8)
@module_tokens_option(512)
@new_option(1, 16, 64)
@uneven_option
@repeats_option(5)
@static_option
@count_launches_option
@plot_option
def ttft(
    chosen: BenchModel,
    modules: int,
    module_tokens: tuple[int, ...],
    new: tuple[int, ...],
    uneven: bool,
    repeats: int,
    static: bool,
    count_launches: bool,
    plot: Path | None,
) -> BenchReport:
    """Time to first token of a planned request: linked modules against every alternative."""
    if count_launches:
        check_counted(chosen, plot)
        from promptcache.bench.launches import count_ttft

        return count_ttft(chosen.shape, chosen.torch_dtype, sizes_of(modules, module_tokens, new))
    check_axis(plot, module_tokens=module_tokens, new=new)
    from promptcache.bench.comparisons import compare_ttft

    sizes = sizes_of(modules, module_tokens, new, uneven=uneven)
    model = chosen.load()
    is_compiled = is_static_measured(model, asked=static)
    return compare_ttft(model, sizes, repeats, chosen.progress, is_compiled=is_compiled)


@command.command()
@with_model
@modules_option(8)
@module_tokens_option(512)
@uneven_option
@decoded_option
@repeats_option(5)
@static_option
@count_launches_option
def decode(
    chosen: BenchModel,
    modules: int,
    module_tokens: tuple[int, ...],
    uneven: bool,
    tokens: int,
    repeats: int,
    static: bool,
    count_launches: bool,
) -> BenchReport:
    """Time of one decoded token: over linked modules, and over a `DynamicCache` with the same KV."""
    if count_launches:
        check_counted(chosen)
        from promptcache.bench.launches import count_decoding

        return count_decoding(chosen.shape, chosen.torch_dtype, sizes_of(modules, module_tokens))
    from promptcache.bench.comparisons import compare_decoding

    sizes = sizes_of(modules, module_tokens, uneven=uneven)
    model = chosen.load()
    is_compiled = is_static_measured(model, asked=static)
    return compare_decoding(model, sizes, repeats, tokens, chosen.progress, is_compiled=is_compiled)


@command.command()
@with_model
@click.option(
    "--target",
    "targets",
    type=click.Choice(_TARGETS),
    multiple=True,
    default=_TARGETS,
    help="What answers the requests; repeat the option for several.",
)
@numbers_option("--clients", (1, 4, 16, 32), "Clients, each with one request at a time; repeat the option for several.")
@click.option(
    "--load",
    "loads",
    metavar="SHARE",
    type=click.FloatRange(0, 1, min_open=True),
    multiple=True,
    help="Also let requests arrive at random, at this share of each target's capacity; may be given several times.",
)
@number_option("--requests", 2, "Requests of each client in one round.")
@click.option("--sampled", is_flag=True, help="Draw tokens with temperature and top-p instead of greedy decoding.")
@number_option("--modules", 8, "Modules of the schema.")
@click.option("--used", metavar="N", type=click.IntRange(1), help="Modules of each request; default: a random number.")
@number_option("--module-tokens", 256, "Tokens of each module.")
@number_option("--new", 12, "Tokens of the request's own text.")
@click.option("--tokens", metavar="N", type=click.IntRange(2), default=32, help="Tokens of the answer.")
@number_option("--repeats", 3, "Rounds that count; some requests before them warm up.")
@click.option("--seed", type=int, default=0, help="Seed of modules, requests and arrivals.")
def serve(
    chosen: BenchModel,
    targets: tuple[TargetName, ...],
    clients: tuple[int, ...],
    loads: tuple[float, ...],
    requests: int,
    sampled: bool,
    modules: int,
    used: int | None,
    module_tokens: int,
    new: int,
    tokens: int,
    repeats: int,
    seed: int,
) -> BenchReport:
    """Many requests at once: one at a time, the scheduler, `promptcache serve` and `transformers serve`."""
    check_used(used or 1, modules)
    if chosen.pack != "auto" and {TargetName.HTTP, TargetName.RAY} & {*targets}:
        raise UsageMistake(
            f"--pack {chosen.pack} is for engines of this process, and servers decide for themselves: "
            "name targets without a server, such as --target scheduler"
        )
    from promptcache.bench.load import LoadSizes
    from promptcache.bench.serving import LoadSettings, compare_serving
    from promptcache.bench.targets import load_setup

    sizes = LoadSizes(
        num_modules=modules, num_used=used, module_tokens=module_tokens, new_tokens=new, answer_tokens=tokens
    )
    settings = LoadSettings(
        targets=[*map(TargetName, dict.fromkeys(targets))],
        clients=clients,
        loads=[*dict.fromkeys(loads)],
        num_requests=requests,
        repeats=repeats,
        seed=seed,
    )
    with TemporaryDirectory(prefix="promptcache-") as scratch:
        engine, folder = chosen.load_engine(Path(scratch))
        setup = load_setup(engine, folder, sizes, Path(scratch), is_sampled=sampled, seed=seed)
        return compare_serving(setup, settings, progress=chosen.progress)


def set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def sizes_of(
    modules: int, module_tokens: Sequence[int], new: Sequence[int] = (16,), *, uneven: bool = False
) -> list[Sizes]:
    from promptcache.bench.workload import Sizes

    return [
        Sizes(num_modules=modules, module_tokens=tokens, new_tokens=count, uneven=uneven)
        for tokens in module_tokens
        for count in new
    ]


def _write(report: BenchReport, model: Mapping[str, str], *, as_json: bool) -> None:
    """Write a table, or one line of JSON with the seconds of each run."""
    if as_json:
        write_text(json.dumps({"bench": report.name, **model, "hardware": hardware(), "rows": report.rows}) + "\n")
    else:
        from rich.table import Table

        from promptcache.cli.console import stdout

        table = Table(*report.columns, title=report.title)
        for cells in report.cells:
            table.add_row(*cells)
        stdout().print(table)
