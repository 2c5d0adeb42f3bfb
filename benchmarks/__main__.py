"""`python -m benchmarks NAME`: measures the figures of this repository, and prints a table or a line of JSON.

`promptcache bench` has the benchmarks for models of users. Torch is imported inside the commands, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.quality.plot import plot_quality
from benchmarks.quality.sets import GROUPS, LONG, MEDIUM, SETS, SHORT
from benchmarks.quality.ways import DEFAULT_WAYS, WAY_NAMES, Way, way_named
from promptcache.cli.bench import (
    BenchModel,
    benchmark,
    check_axis,
    check_used,
    decoded_option,
    module_tokens_option,
    modules_option,
    new_option,
    number_option,
    numbers_option,
    plot_option,
    repeats_option,
    set_threads,
    sizes_of,
    threads_option,
    with_model,
)
from promptcache.cli.completion import complete_schemas
from promptcache.cli.console import show_loading
from promptcache.cli.options import (
    HELP,
    CommandGroup,
    RepairType,
    dtype_option,
    model_option,
    prompt_argument,
)
from promptcache.cli.sources import Sources
from promptcache.language import Repair

if TYPE_CHECKING:
    from promptcache.bench.harness import BenchReport, Progress
    from promptcache.engine import Engine


@click.group("benchmarks", cls=CommandGroup, no_args_is_help=True, context_settings=HELP)
def command() -> None:
    """Measure the figures of this repository. `promptcache bench` measures your own model."""


@command.command()
@with_model
@number_option("--chats", 3, "Conversations, over different modules of one library.")
@number_option("--turns", 20, "Turns of each conversation.")
@number_option("--modules", 8, "Modules of each conversation.")
@click.option("--module-tokens", metavar="N", type=click.IntRange(1), default=256, help="Tokens of each module.")
@number_option("--new", 32, "Tokens of each question.")
@click.option("--tokens", metavar="N", type=click.IntRange(2), default=16, help="Tokens of each answer.")
def chat(
    chosen: BenchModel, chats: int, turns: int, modules: int, module_tokens: int, new: int, tokens: int
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
    return compare_chats(chosen.load(), sizes, progress=chosen.progress)


@command.command()
@with_model
@modules_option(8)
@click.option("--module-tokens", metavar="N", type=click.IntRange(1), default=512, help="Tokens of each module.")
@new_option(16, 256)
@number_option("--clients", 32, "Rows of the batch that is decoded, and clients of the service.")
@decoded_option
@repeats_option(5)
def gpu(
    chosen: BenchModel,
    modules: int,
    module_tokens: int,
    new: tuple[int, ...],
    clients: int,
    tokens: int,
    repeats: int,
) -> BenchReport:
    """TTFT, decoding and many clients on a GPU: plain, a compiled `StaticCache`, and both attention backends."""
    from benchmarks.gpu import compare_on_gpu

    return compare_on_gpu(chosen.load(), modules, module_tokens, new, clients, tokens, repeats, chosen.progress)


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
@number_option("--new", 16, "Tokens of the request's own text.")
@click.option("--tokens", metavar="N", type=click.IntRange(2), default=32, help="Tokens of the answer.")
@repeats_option(10)
@plot_option
def kinds(
    chosen: BenchModel, cached: tuple[int, ...], new: int, tokens: int, repeats: int, plot: Path | None
) -> BenchReport:
    """TTFT and decoding of kinds of KV caches: none, `DynamicCache`, `StaticCache` and Prompt Cache."""
    check_axis(plot, cached=cached)
    from benchmarks.kinds import compare_kinds

    return compare_kinds(chosen.load(), [*dict.fromkeys(cached)], new, tokens, repeats, progress=chosen.progress)


@command.command()
@with_model
@number_option("--subjects", 12, "Subjects, each with a few-shot prefix.")
@number_option("--questions", 8, "Questions about each subject.")
@number_option("--prefix-tokens", 600, "Tokens of a prefix, a quarter more or less.")
@number_option("--new", 80, "Tokens of a question, a quarter more or less.")
@numbers_option("--batch", (1, 4), "Rows in a batch; repeat the option to compare sizes.")
@number_option("--repeats", 1, "How often all questions are served, each time with empty caches.")
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
    from benchmarks.prefixes import PrefixSizes, compare_prefixes

    sizes = PrefixSizes(subjects=subjects, questions=questions, prefix_tokens=prefix_tokens, new_tokens=new)
    return compare_prefixes(chosen.load(), sizes, [*dict.fromkeys(batch)], repeats, progress=chosen.progress)


@command.command()
@with_model
@modules_option(8)
@module_tokens_option(512)
@numbers_option("--requests", (20,), "Live requests; repeat the option to compare numbers.")
@plot_option
def memory(
    chosen: BenchModel, modules: int, module_tokens: tuple[int, ...], requests: tuple[int, ...], plot: Path | None
) -> BenchReport:
    """Resident memory that live requests add, and time to make their caches: linked, and as a `DynamicCache` each."""
    check_axis(plot, module_tokens=module_tokens, requests=requests)
    from benchmarks.memory import compare_memory

    return compare_memory(chosen.load(), sizes_of(modules, module_tokens), requests, progress=chosen.progress)


@command.command()
@with_model
@modules_option(8)
@number_option("--module-tokens", 512, "Tokens of each module.")
@number_option("--new", 32, "Tokens of the request's own text.")
@click.option(
    "--repair",
    "repairs",
    type=RepairType(),
    multiple=True,
    default=["slots"],
    help="Setting to compare with none; repeat the option for several.",
)
@repeats_option(5)
def repair(
    chosen: BenchModel, modules: int, module_tokens: int, new: int, repairs: tuple[Repair, ...], repeats: int
) -> BenchReport:
    """Time to first token of a request with arguments, for each setting of `repair`."""
    from benchmarks.repairs import compare_repairs

    (sizes,) = sizes_of(modules, [module_tokens], [new])
    return compare_repairs(chosen.load(), sizes, repairs, repeats, progress=chosen.progress)


@command.command()
@with_model
@modules_option(4)
@number_option("--module-tokens", 512, "Tokens of each module.")
@number_option("--rows", 32, "Requests in the batch.")
@decoded_option
@repeats_option(3)
def batch(chosen: BenchModel, modules: int, module_tokens: int, rows: int, tokens: int, repeats: int) -> BenchReport:
    """Tokens per second of rows that share modules: linked together, and with copies of their own."""
    from benchmarks.batches import compare_batch

    (sizes,) = sizes_of(modules, [module_tokens])
    return compare_batch(chosen.load(), sizes, rows, tokens, repeats, progress=chosen.progress)


@command.command()
@with_model
@modules_option(8)
@module_tokens_option(512)
@new_option(16)
@repeats_option(5)
def disk(
    chosen: BenchModel, modules: int, module_tokens: tuple[int, ...], new: tuple[int, ...], repeats: int
) -> BenchReport:
    """Time to first token of a first request with KV on disk: against KV in memory and plain prefill."""
    from benchmarks.disk import compare_disk

    return compare_disk(chosen.load(), sizes_of(modules, module_tokens, new), repeats, progress=chosen.progress)


@command.command()
@prompt_argument
@click.option("--schema", metavar="FILE", required=True, help="Its schema.", shell_complete=complete_schemas)
@model_option()
@repeats_option(10)
@threads_option
@benchmark
def prompt(
    show: Progress, prompt: str, schema: str, model: str, repeats: int, threads: int | None
) -> tuple[BenchReport, Mapping[str, str]]:
    """Time to first token of your own prompt: cached, and plain prefill of the same tokens.

    PROMPT is a prompt file; - is standard input.
    """
    from promptcache.cli.files import checked_schema, parsed_prompt, read
    from promptcache.language import resolve_prompt

    sources = Sources()
    document, checked = read(prompt, sources), checked_schema(read(schema, sources))
    resolve_prompt(parsed_prompt(document), checked)  # report mistakes before the model is loaded
    from benchmarks.own_prompt import compare_prompt

    engine = _engine(show, model, threads)
    engine.add_schema(checked.source)
    source = document.path or document.data.decode("utf-8-sig")
    return compare_prompt(engine, source, repeats, show), _engine_data(model, engine)


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
@model_option()
@dtype_option
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
@threads_option
@plot_option
@partial(benchmark, draw=plot_quality)
def quality(
    show: Progress,
    sets: tuple[str, ...],
    count: int,
    seed: int,
    module_tokens: tuple[str, ...],
    num_absent: int,
    model: str,
    dtype: str,
    ways: tuple[Way, ...],
    instruction: str | None,
    max_new_tokens: int | None,
    repeats: int,
    threads: int | None,
    plot: Path | None,
) -> tuple[BenchReport, Mapping[str, str]]:
    """Right answers, and distance from plain prefill, for each way to serve a document."""
    from benchmarks.quality.comparison import QualitySettings, compare_quality

    chosen = sets or ("demo" if model == "demo" else "language",)
    engine = _engine(show, model, threads, dtype)
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
    return compare_quality(engine, settings, show), _engine_data(model, engine)


@command.command()
@model_option()
@number_option("--documents", 1000, "Documents of the collection.")
@number_option("--questions", 40, "Questions.")
@number_option("--found", 5, "Documents in each prompt.")
@click.option("--seed", type=int, default=0, help="Seed of documents, questions and orders.")
@click.option(
    "--repair",
    "repairs",
    type=RepairType(),
    multiple=True,
    default=["none", "first-4"],
    help="Setting to compare with plain prefill; repeat the option for several.",
)
@dtype_option
@threads_option
@benchmark
def retrieval(
    show: Progress,
    model: str,
    documents: int,
    questions: int,
    found: int,
    seed: int,
    repairs: tuple[Repair, ...],
    dtype: str,
    threads: int | None,
) -> tuple[BenchReport, Mapping[str, str]]:
    """Answers from documents that BM25 finds: plain prefill against members of a collection."""
    from benchmarks.retrieval import compare_retrieval

    engine = _engine(show, model, threads, dtype)
    report = compare_retrieval(engine, documents, questions, found, seed, [*dict.fromkeys(map(str, repairs))], show)
    return report, _engine_data(model, engine)


@command.command()
@model_option()
@click.option("--rate", metavar="X", type=click.FloatRange(0, min_open=True), default=6.0, help="Requests per second.")
@number_option("--requests", 90, "Requests of a round.")
@number_option("--modules", 8, "Modules of the schema.")
@number_option("--used", 3, "Modules of each request.")
@click.option("--module-tokens", metavar="N", type=click.IntRange(1), default=150, help="Tokens of each module.")
@number_option("--new", 16, "Tokens of the request's own text.")
@number_option("--tokens", 24, "Tokens of the answer.")
@repeats_option(4)
@threads_option
@benchmark
def idle(
    show: Progress,
    model: str,
    rate: float,
    requests: int,
    modules: int,
    used: int,
    module_tokens: int,
    new: int,
    tokens: int,
    repeats: int,
    threads: int | None,
) -> tuple[BenchReport, Mapping[str, str]]:
    """TTFT of a service under load, with and without promotions in idle time."""
    check_used(used, modules)
    from benchmarks.idle import compare_idle
    from promptcache.bench.load import LoadSizes

    engine = _engine(show, model, threads)
    sizes = LoadSizes(
        num_modules=modules, num_used=used, module_tokens=module_tokens, new_tokens=new, answer_tokens=tokens
    )
    return compare_idle(engine, sizes, rate, requests, repeats, show), _engine_data(model, engine)


@command.command()
@model_option()
@number_option("--rows", 16, "Rows that are answered together, each with a schema of its own.")
@number_option("--tokens", 32, "Tokens of each answer.")
@repeats_option(5)
@threads_option
@benchmark
def structured(
    show: Progress, model: str, rows: int, tokens: int, repeats: int, threads: int | None
) -> tuple[BenchReport, Mapping[str, str]]:
    """Answers with JSON schemas against answers without a format."""
    from benchmarks.structured import compare_structured

    engine = _engine(show, model, threads)
    return compare_structured(engine, rows, tokens, repeats, show), _engine_data(model, engine)


def _engine(show: Progress, model: str, threads: int | None, dtype: str = "auto") -> Engine:
    from promptcache.engine import Engine

    set_threads(threads)
    show_loading(show, model)
    return Engine.from_pretrained(model, dtype=dtype, history_bytes=0)  # each round asks the same prompt again


def _engine_data(name: str, engine: Engine) -> Mapping[str, str]:
    shape = engine.model.shape
    return {"model": name, "dtype": str(shape.dtype).removeprefix("torch."), "device": str(shape.device)}


if __name__ == "__main__":
    command(prog_name="python -m benchmarks")
