"""`python -m benchmarks NAME`: measures the figures of this repository, and prints a table or a line of JSON.

`promptcache bench` has the benchmarks for models of users. Torch is imported inside the commands, because that takes
long.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from benchmarks.load import LoadSizes, TargetName
from benchmarks.quality.sets import GROUPS, LONG, MEDIUM, SETS, SHORT
from benchmarks.quality.ways import DEFAULT_WAYS, WAY_NAMES, Way, way_named
from benchmarks.shapes import SHAPES
from promptcache.diagnostics import PromptCacheError
from promptcache.language import Context
from promptcache.progress import Progress, silent
from promptcache.timing import hardware

if TYPE_CHECKING:
    import torch

    from benchmarks.common import BenchReport, Sizes
    from promptcache.engine import Engine
    from promptcache.model import Model

_TARGETS = [each.value for each in TargetName]
_EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_DTYPES = click.Choice(["float32", "bfloat16", "float16", "float64"])
_MODEL = click.option("--model", default="demo", show_default=True, help="demo, a model's folder, or a hub id.")
_ANY_DTYPE = click.option(
    "--dtype",
    type=click.Choice(["auto", *_DTYPES.choices]),
    default="auto",
    show_default=True,
    help="Of weights and KV.",
)


@click.group("benchmarks", no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Measure the figures of this repository. `promptcache bench` measures your own model."""


def number_option(name: str, default: int | None, words: str) -> Callable[..., Any]:
    return click.option(name, metavar="N", type=click.IntRange(1), default=default, help=words, show_default=True)


def numbers_option(name: str, default: tuple[int, ...], words: str) -> Callable[..., Any]:
    words = f"{words}; repeat the option to compare sizes."
    return click.option(
        name, metavar="N", type=click.IntRange(1), multiple=True, default=default, help=words, show_default=True
    )


def benchmark(measure: Callable[..., tuple[BenchReport, Mapping[str, str]]]) -> Callable[..., None]:
    """Add `--threads` and `--json`. The command takes a progress callback; it returns a report and model facts."""

    @wraps(measure)
    def written(threads: int | None, as_json: bool, **own: Any) -> None:
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        try:
            report, model = measure(_show if sys.stderr.isatty() else silent, **own)
        except PromptCacheError as error:
            raise click.ClickException(str(error)) from None
        _write(report, model, as_json=as_json)

    as_json = click.option("--json", "as_json", is_flag=True, help="Write one line of JSON with every single run.")
    threads = number_option("--threads", None, "Threads of torch; default: torch's own choice.")
    found: Callable[..., None] = as_json(threads(written))
    return found


def with_model(measure: Callable[..., BenchReport]) -> Callable[..., None]:
    """Add the options of a model. The command takes a progress callback and a loader of the model."""

    @wraps(measure)
    def measured(
        show: Progress, shape: str, model: str | None, dtype: str, device: str, **own: Any
    ) -> tuple[BenchReport, Mapping[str, str]]:
        load = partial(_load, shape, model, dtype, device)
        return measure(show, load, **own), {"model": model or shape, "dtype": dtype, "device": device}

    return _model_options(benchmark(measured))


def _model_options(found: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--device", default="cpu", show_default=True, help="cpu, cuda, ..."),
        click.option("--dtype", type=_DTYPES, default="float32", show_default=True, help="Of weights and KV."),
        click.option("--model", help="demo, a model's folder, or a hub id, instead of a shape."),
        click.option(
            "--shape",
            type=click.Choice(list(SHAPES)),
            default="qwen2.5-0.5b",
            show_default=True,
            help="A published model shape with random weights.",
        ),
    ):
        found = option(found)
    return found


modules_option = number_option("--modules", 8, "Modules in the request.")
module_tokens_option = numbers_option("--module-tokens", (512,), "Tokens of each module")


def repeats_option(default: int) -> Callable[..., Any]:
    return number_option("--repeats", default, "Rounds that count; one more warms up.")


@command.command()
@click.argument("shape", type=click.Choice(list(SHAPES)))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--dtype", type=_DTYPES, default="float32", show_default=True, help="Of the weights.")
def shape(shape: str, folder: Path, dtype: str) -> None:
    """Save a model of a published shape with random weights, for `promptcache bench --model FOLDER`."""
    from benchmarks.targets import save_shape

    save_shape(shape, _dtype(dtype), folder)


@command.command()
@with_model
@number_option("--chats", 3, "Conversations, over different modules of one library.")
@number_option("--turns", 20, "Turns of each conversation.")
@number_option("--modules", 8, "Modules of each conversation.")
@number_option("--module-tokens", 256, "Tokens of each module.")
@number_option("--new", 32, "Tokens of each question.")
@click.option("--tokens", metavar="N", type=click.IntRange(2), default=16, help="Tokens of each answer.")
def chat(
    show: Progress,
    load: Callable[[], Model],
    chats: int,
    turns: int,
    modules: int,
    module_tokens: int,
    new: int,
    tokens: int,
) -> BenchReport:
    """Conversations: turn by turn, against a growing `DynamicCache`."""
    from benchmarks.chats import ChatSizes, compare_chats

    sizes = ChatSizes(
        num_chats=chats,
        num_turns=turns,
        num_modules=modules,
        module_tokens=module_tokens,
        question_tokens=new,
        answer_tokens=tokens,
    )
    return compare_chats(load(), sizes, show)


@command.command()
@benchmark
@_MODEL
@_ANY_DTYPE
@number_option("--words", 100, "Words of each module.")
@repeats_option(5)
def first(show: Progress, model: str, dtype: str, words: int, repeats: int) -> tuple[BenchReport, Mapping[str, str]]:
    """Stages from the start of a process to its first token, each time in a new process."""
    from benchmarks.first import measure_stages

    return measure_stages(model, dtype, words, repeats, show), {"model": model, "dtype": dtype}


@command.command()
@with_model
@modules_option
@number_option("--module-tokens", 512, "Tokens of each module.")
@numbers_option("--new", (16, 256), "New tokens of the request")
@number_option("--clients", 32, "Rows of the batch that is decoded, and clients of the service.")
@number_option("--tokens", 16, "Tokens decoded after the prompt.")
@repeats_option(5)
def gpu(
    show: Progress,
    load: Callable[[], Model],
    modules: int,
    module_tokens: int,
    new: tuple[int, ...],
    clients: int,
    tokens: int,
    repeats: int,
) -> BenchReport:
    """TTFT, decoding and many clients on a GPU: plain, a compiled `StaticCache`, and both attention backends."""
    from benchmarks.gpu import compare_on_gpu

    return compare_on_gpu(load(), modules, module_tokens, new, clients, tokens, repeats, show)


@command.command()
@with_model
@number_option("--subjects", 12, "Subjects, each with a few-shot prefix.")
@number_option("--questions", 8, "Questions about each subject.")
@number_option("--prefix-tokens", 600, "Tokens of a prefix, a quarter more or less.")
@number_option("--new", 80, "Tokens of a question, a quarter more or less.")
@numbers_option("--batch", (1, 4), "Rows in a batch")
@number_option("--repeats", 1, "How often all questions are served, each time with empty caches.")
def prefixes(
    show: Progress,
    load: Callable[[], Model],
    subjects: int,
    questions: int,
    prefix_tokens: int,
    new: int,
    batch: tuple[int, ...],
    repeats: int,
) -> BenchReport:
    """CPU time of a loop over questions behind repeated prefixes: no cache, block hashes, and `PrefixCache`."""
    from benchmarks.prefixes import PrefixSizes, compare_prefixes

    sizes = PrefixSizes(subjects=subjects, questions=questions, prefix_tokens=prefix_tokens, new_tokens=new)
    return compare_prefixes(load(), sizes, [*dict.fromkeys(batch)], repeats, show)


@command.command()
@benchmark
def path(_show: Progress) -> tuple[BenchReport, Mapping[str, str]]:
    """Functions, files and types of records of ours that a request passes before its first token."""
    from benchmarks.call_path import count_call_path

    return count_call_path(), {"model": "demo"}


@command.command()
@with_model
@repeats_option(15)
def combinations(show: Progress, load: Callable[[], Model], repeats: int) -> BenchReport:
    """Time to first token of a combination that came before, with equal and with uneven modules, against the floor."""
    from benchmarks.combinations import compare_combinations

    return compare_combinations(load(), repeats, show)


@command.command()
@click.option("--model", required=True, help="A model's folder, or a hub id.")
@click.option(
    "--gguf",
    required=True,
    type=_EXISTING_FILE,
    help="The same model for llama.cpp, with weights in 8 bits.",
)
@click.option("--dtype", type=_DTYPES, default="bfloat16", show_default=True, help="Of weights and KV.")
@benchmark
@numbers_option("--module-tokens", (256, 1024), "Tokens of each of eight modules, of which a request has four")
@number_option("--new", 24, "Tokens of the request's own text.")
@number_option("--tokens", 32, "Tokens of an answer.")
@number_option("--clients", 8, "Requests at once.")
@repeats_option(5)
def llama(
    show: Progress,
    model: str,
    gguf: Path,
    dtype: str,
    module_tokens: tuple[int, ...],
    new: int,
    tokens: int,
    clients: int,
    repeats: int,
) -> tuple[BenchReport, Mapping[str, str]]:
    """TTFT, decoding and many requests beside llama.cpp: `pip install llama-cpp-python` first."""
    from benchmarks.llama import LlamaSizes, compare_llama
    from promptcache.engine import Engine

    engine = Engine.from_pretrained(model, dtype=dtype, promote="off")
    sizes = [
        LlamaSizes(module_tokens=each, question_tokens=new, answer_tokens=tokens, num_clients=clients)
        for each in dict.fromkeys(module_tokens)
    ]
    return compare_llama(engine, gguf, sizes, repeats, show), {"model": model, "dtype": dtype, "gguf": gguf.name}


@command.command()
@with_model
@modules_option
@module_tokens_option
@numbers_option("--requests", (20,), "Live requests")
def memory(
    show: Progress, load: Callable[[], Model], modules: int, module_tokens: tuple[int, ...], requests: tuple[int, ...]
) -> BenchReport:
    """Resident memory that live requests add, and time to make their caches: linked, and as a `DynamicCache` each."""
    from benchmarks.memory import compare_memory

    return compare_memory(load(), _sizes(modules, module_tokens, (16,)), requests, show)


@command.command()
@with_model
@modules_option
@module_tokens_option
@numbers_option("--new", (16,), "New tokens of the request")
@repeats_option(5)
def disk(
    show: Progress,
    load: Callable[[], Model],
    modules: int,
    module_tokens: tuple[int, ...],
    new: tuple[int, ...],
    repeats: int,
) -> BenchReport:
    """Time to first token of a first request with KV on disk: against KV in memory and ordinary prefill."""
    from benchmarks.disk import compare_disk

    return compare_disk(load(), _sizes(modules, module_tokens, new), repeats, show)


@command.command()
@_model_options
@benchmark
@click.option(
    "--target",
    "targets",
    type=click.Choice(_TARGETS),
    multiple=True,
    default=_TARGETS,
    help="What answers the requests; repeat the option for several.",
)
@numbers_option("--clients", (1, 4, 16, 32), "Clients, each with one request at a time")
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
@click.option("--llama-server", type=_EXISTING_FILE, help="The program of llama.cpp, for the target llama-server.")
@click.option("--gguf", type=_EXISTING_FILE, help="The same model for it, with weights in 8 bits.")
def serve(
    show: Progress,
    shape: str,
    model: str | None,
    dtype: str,
    device: str,
    targets: tuple[str, ...],
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
    llama_server: Path | None,
    gguf: Path | None,
) -> tuple[BenchReport, Mapping[str, str]]:
    """Many requests at once: one at a time, the scheduler, `promptcache serve` and other servers."""
    if used is not None and used > modules:
        raise click.UsageError(f"--used {used}: a schema has {modules} modules")
    from benchmarks.serving import LoadSettings, compare_serving
    from benchmarks.targets import load_setup, save_shape
    from promptcache.engine import Engine
    from promptcache.tokenizer import local_folder

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
        if model is None:
            folder: Path | None = Path(scratch, "model")
            save_shape(shape, _dtype(dtype), Path(scratch, "model"))
        elif (folder := local_folder(model)) is None:
            raise click.UsageError(f"--model {model}: servers need the folder of a model")
        engine = Engine.from_pretrained(str(folder), device=device, dtype=dtype, pack=None)
        setup = load_setup(
            engine,
            Path(str(folder)),
            sizes,
            seed=seed,
            is_sampled=sampled,
            scratch=Path(scratch),
            most_clients=max(clients),
            llama=None if llama_server is None or gguf is None else (llama_server, gguf),
        )
        return compare_serving(setup, settings, show), {"model": model or shape, "dtype": dtype, "device": device}


def _read_ways(_ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[Way, ...]:
    try:
        return tuple(map(way_named, names))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def with_engine(measure: Callable[..., BenchReport]) -> Callable[..., None]:
    """Add `--model` and `--dtype`. The command takes a progress callback and an engine without history."""

    @wraps(measure)
    def measured(show: Progress, model: str, dtype: str, **own: Any) -> tuple[BenchReport, Mapping[str, str]]:
        from promptcache.engine import Engine

        # without history, because each round asks the same prompt again
        engine = Engine.from_pretrained(model, dtype=dtype, history=False)
        facts = engine.model.shape
        data = {"model": model, "dtype": str(facts.dtype).removeprefix("torch."), "device": str(facts.device)}
        return measure(show, engine, **own), data

    found: Callable[..., Any] = benchmark(measured)
    return _MODEL(_ANY_DTYPE(found))


@command.command()
@with_engine
@number_option("--words", 100, "Words of each module.")
@repeats_option(5)
def pairs(show: Progress, engine: Engine, words: int, repeats: int) -> BenchReport:
    """First requests with a combination of warm modules: beside ordinary prefill, and after `warm(pairs=True)`."""
    from benchmarks.first import measure_pairs

    return measure_pairs(engine, words, repeats, show)


@command.command()
@with_engine
@click.option(
    "--set",
    "sets",
    type=click.Choice((*GROUPS, *SETS)),
    multiple=True,
    help="Sets of questions, or groups of sets; default: demo for the demo model, language for others.",
)
@number_option("--count", 100, "Questions of each set.")
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
@number_option("--max-new-tokens", None, "Limit of an answer; default: 48 for demo sets, 24 for others.")
@repeats_option(10)
def quality(
    show: Progress,
    engine: Engine,
    sets: tuple[str, ...],
    count: int,
    seed: int,
    module_tokens: tuple[str, ...],
    num_absent: int,
    ways: tuple[Way, ...],
    instruction: str | None,
    max_new_tokens: int | None,
    repeats: int,
) -> BenchReport:
    """Right answers, and distance from ordinary prefill, for each way to serve a document."""
    from benchmarks.quality.comparison import QualitySettings, compare_quality

    chosen = sets or ("demo" if click.get_current_context().params["model"] == "demo" else "language",)
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
    return compare_quality(engine, settings, show)


@command.command()
@with_engine
@number_option("--documents", 1000, "Documents of the collection.")
@number_option("--questions", 40, "Questions.")
@number_option("--found", 5, "Documents in each prompt.")
@click.option("--seed", type=int, default=0, help="Seed of documents, questions and orders.")
@click.option(
    "--repair",
    "repairs",
    multiple=True,
    default=["none", "first-16"],
    show_default=True,
    help="Setting to compare with ordinary prefill; repeat the option for several.",
)
@click.option(
    "--context",
    type=click.Choice([each.value for each in Context]),
    default=Context.GUARANTEED.value,
    show_default=True,
    help="What documents attend to when they are encoded.",
)
def retrieval(
    show: Progress,
    engine: Engine,
    documents: int,
    questions: int,
    found: int,
    seed: int,
    repairs: tuple[str, ...],
    context: str,
) -> BenchReport:
    """Answers from documents that BM25 finds: ordinary prefill against members of a collection."""
    from benchmarks.retrieval import compare_retrieval

    return compare_retrieval(
        engine, documents, questions, found, seed, Context(context), [*dict.fromkeys(repairs)], show
    )


def _load(shape: str, model: str | None, dtype: str, device: str) -> Model:
    """Load a model, or make one of a shape with random weights."""
    import torch

    from benchmarks.shapes import random_shape
    from promptcache.model import Model, load_model

    if model is None:
        made = Model(random_shape(shape, _dtype(dtype), torch.device(device)))
    else:
        made = Model(load_model(model, device=torch.device(device), dtype=_dtype(dtype))[0])
    made.pack_weights(None)
    return made


def _dtype(name: str) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, name)
    return found


def _sizes(modules: int, module_tokens: tuple[int, ...], new: tuple[int, ...]) -> list[Sizes]:
    from benchmarks.common import Sizes

    return [Sizes(num_modules=modules, module_tokens=each, new_tokens=count) for each in module_tokens for count in new]


def _show(task: str, done: int, total: int | None) -> None:
    """Overwrite the last line of a terminal."""
    click.echo(f"\r\x1b[K{task}" + ("" if total is None else f" {done}/{total}"), nl=False, err=True)


def _write(report: BenchReport, model: Mapping[str, str], *, as_json: bool) -> None:
    """Write a table, or one line of JSON with the seconds of each run."""
    if as_json:
        click.echo(json.dumps({"bench": report.name, **model, "hardware": hardware(), "rows": report.rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*report.columns, title=report.title)
    for cells in report.cells:
        table.add_row(*cells)
    Console().print(table)


if __name__ == "__main__":
    command(prog_name="python -m benchmarks")
