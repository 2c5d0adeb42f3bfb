"""`promptcache bench`: compares Prompt Cache with alternatives, and prints a table or one line of JSON.

Torch is imported inside the commands, because shell completion and `--help` load this file too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from promptcache.bench.load import TargetName
from promptcache.bench.plot import NOTHING_VARIES
from promptcache.bench.quality_sets import GROUPS, LONG, MEDIUM, SETS, SHORT
from promptcache.bench.quality_ways import DEFAULT_WAYS, WAY_NAMES, Way, way_named
from promptcache.bench.shapes import SHAPES
from promptcache.cli.completion import complete_schemas
from promptcache.cli.console import progress, show_loading
from promptcache.cli.exits import EnvironmentMissing, UsageMistake, ending
from promptcache.cli.options import FILE, CommandGroup, RepairType, Size, json_option, model_option, prompt_argument
from promptcache.cli.output import write_text
from promptcache.cli.serve import check_server_installed
from promptcache.cli.sources import Sources
from promptcache.diagnostics import InvalidValue
from promptcache.language import Repair

if TYPE_CHECKING:
    from promptcache.bench.harness import BenchReport, Progress
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

        _set_threads(self.threads)
        dtype = getattr(torch, self.dtype)
        device = device_named(self.device) or torch.device("cpu")
        if self.model is not None:
            return load_model(self.model, device=device, dtype=dtype, pack=self._pack)[0]
        model = Model(random_shape(self.shape, dtype, device))
        model.pack_weights(self._pack)
        return model

    def load_engine(self, scratch: Path) -> tuple[Engine, Path]:
        """Load the model into an engine; return it and the model's folder. A shape is saved in `scratch`."""
        show_loading(self.progress, self.model or self.shape)
        import torch

        from promptcache.bench.targets import save_shape
        from promptcache.cli.engine import load_engine
        from promptcache.tokenizer import local_folder

        _set_threads(self.threads)
        if self.model is None:
            save_shape(self.shape, getattr(torch, self.dtype), scratch / "model")
            made = load_engine(str(scratch / "model"), self.device, self.dtype, pack=self._pack)
            return made, scratch / "model"
        engine = load_engine(self.model, self.device, self.dtype, pack=self._pack)
        if (folder := local_folder(self.model)) is not None:
            return engine, folder
        from huggingface_hub import snapshot_download

        return engine, Path(snapshot_download(self.model, local_files_only=True))  # downloaded for the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The progress bar of a benchmark, and the documents that it has read."""

    progress: Progress
    sources: Sources


def benchmark(command: Callable[..., tuple[BenchReport, Mapping[str, str]]]) -> Callable[..., None]:
    """Add a progress bar and `--json`; the command takes a `Session`, and returns its report and the model's data."""

    @wraps(command)
    def written(as_json: bool, **own: Any) -> None:
        with ending(as_json=as_json) as sources:
            with progress() as show:
                report, model = command(Session(progress=show, sources=sources), **own)
            _write(report, model, own.get("plot"), as_json=as_json)

    return json_option(written)


def with_model(command: Callable[..., BenchReport]) -> Callable[..., None]:
    """Add the options of the model; the command takes them as one `BenchModel` before its own options."""

    @wraps(command)
    def measured(
        session: Session,
        shape: str,
        model: str | None,
        dtype: str,
        device: str,
        threads: int | None,
        pack: str,
        **own: Any,
    ) -> tuple[BenchReport, Mapping[str, str]]:
        chosen = BenchModel(
            shape=shape, model=model, dtype=dtype, device=device, threads=threads, pack=pack, progress=session.progress
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


def _number(name: str, default: int | None, words: str, *, most: int | None = None) -> Callable[[Decorated], Decorated]:
    return click.option(name, metavar="N", type=click.IntRange(1, most), default=default, help=words)


def _numbers(name: str, default: Sequence[int], words: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, metavar="N", type=click.IntRange(1), multiple=True, default=default, help=words)


def _modules(default: int) -> Callable[[Decorated], Decorated]:
    return _number("--modules", default, "Modules in the request.")


def _module_tokens(*default: int) -> Callable[[Decorated], Decorated]:
    return _numbers("--module-tokens", default, "Tokens of each module; repeat the option to compare sizes.")


def _new(*default: int) -> Callable[[Decorated], Decorated]:
    return _numbers("--new", default, "New tokens of the request; repeat the option to compare sizes.")


def _repeats(default: int) -> Callable[[Decorated], Decorated]:
    return _number("--repeats", default, "Rounds that count; one more warms up.")


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


def _check_axis(path: Path | None, *varied: Sequence[int]) -> None:
    """Refuse a plot in which no size varies before the measurement starts."""
    if path is not None and all(len(set(values)) < 2 for values in varied):
        raise UsageMistake(NOTHING_VARIES)


threads_option = _number("--threads", None, "Threads of torch; default: torch's own choice.", most=512)
decoded_option = _number("--tokens", 16, "Tokens decoded after the prompt.")
uneven_option = click.option("--uneven", is_flag=True, help="Give every module another length.")
plot_option = click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_check_plot,
    help="Also plot the report into an .svg, .png or .pdf file. Needs matplotlib.",
)


@click.group("bench", cls=CommandGroup, no_args_is_help=True)
def command() -> None:
    """Compare Prompt Cache with the alternatives on your machine."""


@command.command()
@with_model
@_modules(8)
@_module_tokens(512)
@_new(1, 16, 64)
@uneven_option
@_repeats(5)
@plot_option
def ttft(
    chosen: BenchModel,
    modules: int,
    module_tokens: tuple[int, ...],
    new: tuple[int, ...],
    uneven: bool,
    repeats: int,
    plot: Path | None,
) -> BenchReport:
    """Time to first token of a planned request: linked modules against every alternative."""
    _check_axis(plot, module_tokens, new)
    from promptcache.bench.comparisons import compare_ttft

    sizes = _sizes(modules, module_tokens, new, uneven=uneven)
    return compare_ttft(chosen.load(), sizes, repeats, progress=chosen.progress)


@command.command()
@with_model
@_modules(8)
@_module_tokens(512)
@uneven_option
@decoded_option
@_repeats(5)
def decode(
    chosen: BenchModel, modules: int, module_tokens: tuple[int, ...], uneven: bool, tokens: int, repeats: int
) -> BenchReport:
    """Time of one decoded token: over linked modules, and over a `DynamicCache` with the same KV."""
    from promptcache.bench.comparisons import compare_decoding

    sizes = _sizes(modules, module_tokens, uneven=uneven)
    return compare_decoding(chosen.load(), sizes, repeats, tokens, progress=chosen.progress)


@command.command()
@with_model
@_number("--chats", 3, "Conversations, over different modules of one library.")
@_number("--turns", 20, "Turns of each conversation.")
@_number("--modules", 8, "Modules of each conversation.")
@click.option("--module-tokens", metavar="N", type=click.IntRange(1), default=256, help="Tokens of each module.")
@_number("--new", 32, "Tokens of each question.")
@click.option("--tokens", metavar="N", type=click.IntRange(2), default=16, help="Tokens of each answer.")
def chat(
    chosen: BenchModel, chats: int, turns: int, modules: int, module_tokens: int, new: int, tokens: int
) -> BenchReport:
    """Conversations: turn by turn, against a growing `DynamicCache`."""
    from promptcache.bench.chats import ChatSizes, compare_chats

    sizes = ChatSizes(
        num_chats=chats,
        num_turns=turns,
        num_modules=modules,
        module_tokens=module_tokens,
        question_tokens=new,
        answer_tokens=tokens,
    )
    return compare_chats(chosen.load(), sizes, progress=chosen.progress)


@command.command()
@with_model
@click.option(
    "--cached",
    metavar="N",
    type=click.IntRange(0),
    multiple=True,
    default=[0, 1000, 3400],
    help="Cached tokens; repeat the option to compare sizes.",
)
@_number("--new", 16, "Tokens of the request's own text.")
@click.option("--tokens", metavar="N", type=click.IntRange(2), default=32, help="Tokens of the answer.")
@_repeats(10)
@plot_option
def kinds(
    chosen: BenchModel, cached: tuple[int, ...], new: int, tokens: int, repeats: int, plot: Path | None
) -> BenchReport:
    """TTFT and decoding of kinds of KV caches: none, `DynamicCache`, `StaticCache` and Prompt Cache."""
    _check_axis(plot, cached)
    from promptcache.bench.kinds import compare_kinds

    return compare_kinds(chosen.load(), [*dict.fromkeys(cached)], new, tokens, repeats, progress=chosen.progress)


@command.command()
@with_model
@_number("--subjects", 12, "Subjects, each with a few-shot prefix.")
@_number("--questions", 8, "Questions about each subject.")
@_number("--prefix-tokens", 600, "Tokens of a prefix, a quarter more or less.")
@_number("--new", 80, "Tokens of a question, a quarter more or less.")
@_numbers("--batch", (1, 4), "Rows in a batch; repeat the option to compare sizes.")
@_number("--repeats", 1, "How often all questions are served, each time with empty caches.")
def prefixes(
    chosen: BenchModel,
    subjects: int,
    questions: int,
    prefix_tokens: int,
    new: int,
    batch: tuple[int, ...],
    repeats: int,
) -> BenchReport:
    """CPU time of a loop over questions behind repeated prefixes: no cache, block hashes, and `PrefixCache`."""
    from promptcache.bench.prefixes import PrefixSizes, compare_prefixes

    sizes = PrefixSizes(subjects=subjects, questions=questions, prefix_tokens=prefix_tokens, new_tokens=new)
    return compare_prefixes(chosen.load(), sizes, [*dict.fromkeys(batch)], repeats, progress=chosen.progress)


@command.command()
@with_model
@_modules(8)
@_module_tokens(512)
@_numbers("--requests", (20,), "Live requests; repeat the option to compare numbers.")
@plot_option
def memory(
    chosen: BenchModel, modules: int, module_tokens: tuple[int, ...], requests: tuple[int, ...], plot: Path | None
) -> BenchReport:
    """Resident memory that live requests add, and time to make their caches: linked, and as a `DynamicCache` each."""
    _check_axis(plot, module_tokens, requests)
    from promptcache.bench.comparisons import compare_memory

    return compare_memory(chosen.load(), _sizes(modules, module_tokens), requests, progress=chosen.progress)


@command.command()
@with_model
@_modules(8)
@_number("--module-tokens", 512, "Tokens of each module.")
@_number("--new", 32, "Tokens of the request's own text.")
@click.option(
    "--repair",
    "repairs",
    type=RepairType(),
    multiple=True,
    default=["slots"],
    help="Setting to compare with none; repeat the option for several.",
)
@_repeats(5)
def repair(
    chosen: BenchModel, modules: int, module_tokens: int, new: int, repairs: tuple[Repair, ...], repeats: int
) -> BenchReport:
    """Time to first token of a request with arguments, for each setting of `repair`."""
    from promptcache.bench.repairs import compare_repairs

    (sizes,) = _sizes(modules, [module_tokens], [new])
    return compare_repairs(chosen.load(), sizes, repairs, repeats, progress=chosen.progress)


@command.command()
@with_model
@_modules(4)
@_number("--module-tokens", 512, "Tokens of each module.")
@_number("--rows", 32, "Requests in the batch.")
@decoded_option
@_repeats(3)
def batch(chosen: BenchModel, modules: int, module_tokens: int, rows: int, tokens: int, repeats: int) -> BenchReport:
    """Tokens per second of rows that share modules: linked together, and with copies of their own."""
    from promptcache.bench.comparisons import compare_batch

    (sizes,) = _sizes(modules, [module_tokens])
    return compare_batch(chosen.load(), sizes, rows, tokens, repeats, progress=chosen.progress)


def _check_used(num_used: int, num_modules: int) -> None:
    if num_used > num_modules:
        raise UsageMistake(f"--used {num_used}: a schema has {num_modules} modules")


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
@_numbers("--clients", (1, 4, 16, 32), "Clients, each with one request at a time; repeat the option for several.")
@click.option(
    "--load",
    "loads",
    metavar="SHARE",
    type=click.FloatRange(0, 1, min_open=True),
    multiple=True,
    help="Also let requests arrive at random, at this share of each target's capacity; may be given several times.",
)
@_number("--requests", 2, "Requests of each client in one round.")
@click.option("--sampled", is_flag=True, help="Draw tokens with temperature and top-p instead of greedy decoding.")
@_number("--modules", 8, "Modules of the schema.")
@click.option("--used", metavar="N", type=click.IntRange(1), help="Modules of each request; default: a random number.")
@_number("--module-tokens", 256, "Tokens of each module.")
@_number("--new", 12, "Tokens of the request's own text.")
@click.option("--tokens", metavar="N", type=click.IntRange(2), default=32, help="Tokens of the answer.")
@_number("--repeats", 3, "Rounds that count; some requests before them warm up.")
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
    _check_used(used or 1, modules)
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


@command.command()
@with_model
@_modules(8)
@_module_tokens(512)
@_new(16)
@_repeats(5)
def disk(
    chosen: BenchModel, modules: int, module_tokens: tuple[int, ...], new: tuple[int, ...], repeats: int
) -> BenchReport:
    """Time to first token of a first request with KV on disk: against KV in memory and plain prefill."""
    from promptcache.bench.comparisons import compare_disk

    return compare_disk(chosen.load(), _sizes(modules, module_tokens, new), repeats, progress=chosen.progress)


@command.command()
@prompt_argument
@click.option("--schema", metavar="FILE", required=True, help="Its schema.", shell_complete=complete_schemas)
@model_option()
@_repeats(10)
@threads_option
@benchmark
def prompt(
    session: Session, prompt: str, schema: str, model: str, repeats: int, threads: int | None
) -> tuple[BenchReport, Mapping[str, str]]:
    """Time to first token of your own prompt: cached, and plain prefill of the same tokens.

    PROMPT is a prompt file; - is standard input.
    """
    from promptcache.cli.files import checked_schema, parsed_prompt, read
    from promptcache.language import resolve_prompt

    document, checked = read(prompt, session.sources), checked_schema(read(schema, session.sources))
    resolve_prompt(parsed_prompt(document), checked)  # report mistakes before the model is loaded
    from promptcache.bench.comparisons import compare_prompt

    engine = _engine(session, model, threads)
    engine.add_schema(checked.source)
    source = document.path or document.data.decode("utf-8-sig")
    return compare_prompt(engine, source, repeats, session.progress), _engine_data(model, engine)


@command.command()
@click.option(
    "--replicas",
    metavar="N",
    type=click.IntRange(1, 10_000),
    multiple=True,
    default=(10, 100, 1000),
    help="Replicas; repeat the option to compare numbers.",
)
@_number("--requests", 100, "Requests for each replica; the first 30 % do not count.")
@_number("--schemas", 10, "Schemas for each replica.")
@_number("--modules", 8, "Modules of each schema.")
@_number("--used", 4, "Modules of each request.")
@_number("--module-tokens", 256, "Tokens of each module; words, where costs are measured.")
@_number("--new", 32, "Tokens of a request's own text; words, where costs are measured.")
@_number("--tokens", 64, "Tokens of each answer.")
@click.option(
    "--skew", type=click.FloatRange(0, 4), default=1.1, help="Zipf exponent of schemas and modules; 0 is none."
)
@click.option(
    "--busy",
    type=click.FloatRange(0, 2, min_open=True),
    default=0.5,
    help="Requests, as a fraction of what a replica can answer with all modules in memory.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    type=Size(),
    help="Memory of each replica for modules; default: for twice its share of the schemas.",
)
@click.option("--seed", type=int, default=0, help="Seed of the requests.")
@click.option(
    "--costs", metavar="FILE", type=FILE, help="JSON with the costs of a replica; default: measure them with --model."
)
@click.option("--check", is_flag=True, help="Compare the simulation with one and two real replicas of --model.")
@model_option()
@threads_option
@benchmark
def scale(
    session: Session,
    replicas: tuple[int, ...],
    costs: Path | None,
    check: bool,
    model: str,
    threads: int | None,
    **own: Any,
) -> tuple[BenchReport, Mapping[str, str]]:
    """Simulated: hit rates and TTFT of many replicas behind a balancer, by how it chooses a replica."""
    _check_used(own["used"], own["modules"])
    for name in ("skew", "busy"):
        if not isfinite(own[name]):
            raise UsageMistake(f"--{name} {own[name]}: not a finite number")
    if check and costs is not None:
        raise UsageMistake("--check measures the costs of --model itself, so it does not take --costs")
    from promptcache.bench.fleet import Traffic
    from promptcache.bench.scale import ScaleSizes, check_scale, compare_scale, measured_costs, read_costs

    one = Traffic(
        num_requests=own["requests"],
        rate=1.0,
        num_schemas=own["schemas"],
        num_modules=own["modules"],
        num_used=own["used"],
        module_tokens=own["module_tokens"],
        new_tokens=own["new"],
        answer_tokens=own["tokens"],
        skew=own["skew"],
        seed=own["seed"],
    )
    sizes = ScaleSizes(one=one, busy=own["busy"], memory_bytes=own["memory"])
    if costs is not None:
        try:
            given = read_costs(costs.read_text(encoding="utf-8-sig"))
        except InvalidValue as error:
            raise UsageMistake(f"--costs {costs}: {error}") from None
        return compare_scale(given, sizes, [*dict.fromkeys(replicas)], session.progress), {"costs": str(costs)}
    check_server_installed()
    _set_threads(threads)
    show_loading(session.progress, model)
    if check:
        return check_scale(model, sizes, threads, session.progress), {"model": model}
    found, sizes = measured_costs(model, sizes, threads, session.progress)
    return compare_scale(found, sizes, [*dict.fromkeys(replicas)], session.progress), {"model": model}


def _read_ways(_ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[Way, ...]:
    try:
        return tuple(map(way_named, names))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


@command.command()
@click.option(
    "--set",
    "sets",
    type=click.Choice((*GROUPS, *SETS)),
    multiple=True,
    help="Sets of questions, or groups of sets; default: demo for the demo model, language for others.",
)
@_number("--count", 100, "Questions of each set.")
@click.option("--seed", type=int, default=0, help="Seed of documents and questions.")
@click.option(
    "--module-tokens",
    type=click.Choice([str(SHORT), str(MEDIUM), str(LONG)]),
    multiple=True,
    default=[str(SHORT)],
    help="Approximate tokens of each module, except in demo sets; repeat the option to compare sizes.",
)
@click.option(
    "--absent",
    "num_absent",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="Modules in each schema that the prompts do not select, beside those that they do; default 0.",
)
@model_option()
@click.option(
    "--way",
    "ways",
    metavar="WAY",
    multiple=True,
    default=DEFAULT_WAYS,
    callback=_read_ways,
    help=f"How documents are served: {', '.join(WAY_NAMES)}; default: {', '.join(DEFAULT_WAYS)}.",
)
@click.option("--instruction", help="Text at the start of every document; default: the set's own.")
@_number("--max-new-tokens", None, "Limit of an answer; default: 48 for demo sets, 24 for others.")
@_repeats(10)
@threads_option
@plot_option
@benchmark
def quality(
    session: Session,
    sets: tuple[str, ...],
    count: int,
    seed: int,
    module_tokens: tuple[str, ...],
    num_absent: int,
    model: str,
    ways: tuple[Way, ...],
    instruction: str | None,
    max_new_tokens: int | None,
    repeats: int,
    threads: int | None,
    plot: Path | None,
) -> tuple[BenchReport, Mapping[str, str]]:
    """Right answers, and distance from plain prefill, for each way to serve a document."""
    from promptcache.bench.quality import QualitySettings, compare_quality

    chosen = sets or ("demo" if model == "demo" else "language",)
    engine = _engine(session, model, threads)
    settings = QualitySettings(
        sets=[*dict.fromkeys(name for each in chosen for name in GROUPS.get(each, (each,)))],
        count=count,
        seed=seed,
        module_tokens=[*map(int, dict.fromkeys(module_tokens))],
        num_absent=num_absent,
        ways=ways,
        instruction=instruction,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
    )
    return compare_quality(engine, settings, session.progress), _engine_data(model, engine)


def _engine(session: Session, model: str, threads: int | None) -> Engine:
    from promptcache.engine import Engine

    _set_threads(threads)
    show_loading(session.progress, model)
    return Engine.from_pretrained(model, history_bytes=0)  # each round asks the same prompt again


def _engine_data(name: str, engine: Engine) -> Mapping[str, str]:
    shape = engine.model.shape
    return {"model": name, "dtype": str(shape.dtype).removeprefix("torch."), "device": str(shape.device)}


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _sizes(
    modules: int, module_tokens: Sequence[int], new: Sequence[int] = (16,), *, uneven: bool = False
) -> list[Sizes]:
    from promptcache.bench.workload import Sizes

    return [
        Sizes(num_modules=modules, module_tokens=tokens, new_tokens=count, uneven=uneven)
        for tokens in module_tokens
        for count in new
    ]


def _write(report: BenchReport, model: Mapping[str, str], plot_file: Path | None, *, as_json: bool) -> None:
    """Write a table, or one line of JSON with the seconds of each run; then the plot."""
    from promptcache.bench.harness import hardware

    if as_json:
        write_text(json.dumps({"bench": report.name, **model, "hardware": hardware(), "rows": report.rows}) + "\n")
    else:
        from rich.table import Table

        from promptcache.cli.console import stdout

        table = Table(*report.columns, title=report.title)
        for cells in report.cells:
            table.add_row(*cells)
        stdout().print(table)
    if plot_file is not None:
        from promptcache.bench.plot import plot, plot_quality

        draw = plot_quality if report.name == "quality" else plot
        draw(report, plot_file, model=model, hardware=hardware())
