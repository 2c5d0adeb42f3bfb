"""`promptcache warm`: encode schemas ahead of time and keep their KV, or estimate what that takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from promptcache.cli.cache import Entry, open_folder, store_entries
from promptcache.cli.console import progress
from promptcache.cli.documents import Sources, read_schemas
from promptcache.cli.exits import EnvironmentMissing
from promptcache.cli.groups import GroupedCommand
from promptcache.cli.options import DEFAULT_STORE, Output, context_option, schemas_argument, with_json
from promptcache.cli.output import fact_text, warn
from promptcache.cli.request import TokenLimits, all_encodings
from promptcache.cli.settings import OF_ENCODINGS, EngineOptions, collected, engine_options
from promptcache.diagnostics import ROOT, counted, listed, size_text
from promptcache.language import CheckedSchema
from promptcache.progress import Progress, tracked
from promptcache.tokenizer import Dtype, read_facts

if TYPE_CHECKING:
    from promptcache.engine import Engine
    from promptcache.session import WarmReport

_NEW = "new"
_MAX_PATHS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The cost of warming a schema, from its tokens and `config.json`.

    Attributes:
        nbytes: Bytes of KV as it is kept.
    """

    schema: str
    num_encodings: int
    num_tokens: int
    nbytes: int


@click.command("warm", cls=GroupedCommand)
@schemas_argument
@collected("engine", engine_options(store=DEFAULT_STORE, only=OF_ENCODINGS), EngineOptions.of)
@click.option(
    "--estimate",
    is_flag=True,
    help="Encode nothing: print how many tokens all encodings have, with those that the store has already, and the "
    "bytes of their KV. No weights are loaded, and no time is estimated.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Say why modules are encoded: what has changed since the last time."
)
@context_option
@with_json
def command(sources: Sources, schemas: tuple[str, ...], engine: EngineOptions, estimate: bool, verbose: bool) -> Output:
    """Encode schemas ahead of time, and keep their KV for other processes.

    All modules, pairs of modules and members of collections in files are encoded.

    SCHEMA is a schema file; - is standard input.

    Example: promptcache warm helpdesk.xml --model FOLDER --store kept
    """
    checked = read_schemas(schemas, sources)
    if estimate:
        with progress() as show:
            estimates = _estimates(checked, engine, show)
        data = {"model": engine.model, "keep": engine.keep, "schemas": estimates}
        return Output(data=data, text=_estimate_text(estimates, engine.keep))
    work = _warm_schemas(checked, engine, _kept_entries(engine) if verbose else None)
    for report, _ in work:
        warn(*report.faults)
    reports = [{**asdict(report), **({"reasons": why} if verbose else {})} for report, why in work]
    return Output(
        data={"model": engine.model, "store": engine.store, "keep": engine.keep, "schemas": reports},
        text="".join(_warmed_text(*each, engine) for each in work),
    )


def _estimates(schemas: Sequence[CheckedSchema], options: EngineOptions, show: Progress) -> tuple[Estimate, ...]:
    """Estimate the work for each schema without loading a model.

    Raises:
        ModelNotFound: There is no such model.
        SchemaError: A filler is longer than its slot, or the model has too few positions.
    """
    limits = TokenLimits.of(options.model)
    stored_bytes = _stored_bytes(options, limits.folder)
    found = []
    for schema in schemas:
        encodings = all_encodings(schema, limits.lay_out(schema)[0], limits.tokenizer)
        sizes = {each.digest: each.num_tokens for _, each in tracked(encodings, show, f"{schema.name}, encodings")}
        found.append(
            Estimate(
                schema=schema.name,
                num_encodings=len(sizes),
                num_tokens=sum(sizes.values()),
                nbytes=sum(map(stored_bytes, sizes.values())),
            )
        )
    return tuple(found)


def _stored_bytes(options: EngineOptions, folder: Path) -> Callable[[int], int]:
    """Return a function from a number of tokens to the bytes that keep their KV."""
    import torch

    from promptcache.kv import Codec, KVShape, stored_bytes

    dtype = Dtype(options.dtype)
    facts = read_facts(options.model, folder, dtype)
    on_cpu = options.device == "cpu" if options.device else not torch.cuda.is_available()
    shape = KVShape(
        num_layers=facts.num_layers,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        dtype=torch.float32 if facts.is_wider_on_cpu and on_cpu else getattr(torch, facts.dtype),
        device=torch.device("cpu"),
    )
    return lambda num_tokens: stored_bytes(Codec(options.keep), shape, num_tokens)


def _estimate_text(estimates: Sequence[Estimate], keep: str) -> str:
    lines = [
        f"{each.schema}: {counted(each.num_tokens, 'token')} in {counted(each.num_encodings, 'encoding')} to encode, "
        f"{size_text(each.nbytes)} kept as {keep}"
        for each in estimates
    ]
    if len(estimates) > 1:
        tokens, nbytes = sum(each.num_tokens for each in estimates), sum(each.nbytes for each in estimates)
        lines.append(f"together: {counted(tokens, 'token')}, {size_text(nbytes)}; less where schemas share text")
    return "".join(f"{line}\n" for line in lines)


def _kept_entries(options: EngineOptions) -> Sequence[Entry]:
    """Return what the folder of the store has now.

    Raises:
        UsageMistake: The store is no folder.
    """
    assert options.store is not None, "warm has a store"
    try:
        return store_entries(open_folder(options.store))
    except EnvironmentMissing:  # there is none yet
        return ()


def _reasons(schema: str, engine: Engine, keep: str, entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return why encodings of an added schema are made: the paths of their modules, by reason.

    An encoding of a module is compared with those that the store has for the same module and that are not used now.
    """
    layout, own = engine.layout(schema), engine.fingerprint
    wanted = {each.digest: path for path, each in all_encodings(engine.schemas[schema], layout, engine.tokenizer, keep)}
    known = {each.digest for each in entries if each.fingerprint == own}
    earlier: dict[str | None, list[Entry]] = {}
    for each in entries:
        if each.schema == schema and not (each.fingerprint == own and each.digest in wanted):
            earlier.setdefault(each.module, []).append(each)
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(path for digest, path in wanted.items() if digest not in known):
        nearest = max(
            earlier.get(path, ()),
            key=lambda each: (each.fingerprint == own, each.codec == keep, each.used_s),
            default=None,
        )
        found.setdefault(_reason(nearest, engine, keep), []).append(path)
    if any(each.fault for each in entries) and _NEW in found:
        found["new, or in files of another version, which cannot be read"] = found.pop(_NEW)
    return found


def _reason(earlier: Entry | None, engine: Engine, keep: str) -> str:
    """Return in which way an encoding differs from an earlier one of its module."""
    if earlier is None:
        return _NEW
    dtype = str(engine.model.shape.dtype).removeprefix("torch.")
    if earlier.fingerprint == engine.fingerprint:
        return f"kept as {earlier.codec} before" if earlier.codec != keep else "other text, or other text before it"
    if earlier.model != engine.model.name:
        return f"encoded by the model {fact_text(earlier.model or '?')} before"
    return f"computed in {earlier.dtype} before" if earlier.dtype != dtype else "other weights, adapters or tokenizer"


def _warm_schemas(
    schemas: Sequence[CheckedSchema], options: EngineOptions, entries: Sequence[Entry] | None
) -> tuple[tuple[WarmReport, dict[str, list[str]]], ...]:
    """Encode everything of these schemas that the store does not have.

    Args:
        entries: What the store had before; None leaves the reasons out.

    Returns:
        The report for each schema, and the reasons.

    Raises:
        PromptCacheError: The model, the device or the store cannot be used, or something could not be kept.
    """
    engine = replace(options, memory=0).load()  # KV that is kept need not stay in memory
    done = []
    with progress() as show:
        for schema in schemas:
            engine.add_schema(schema.source)
            why = {} if entries is None else _reasons(schema.name, engine, options.keep, entries)
            (report,) = engine.warm(
                schema.name, members=True, pairs=True, progress=partial(show, f"{schema.name}, tokens")
            )
            if report.not_kept:
                raise EnvironmentMissing(report.faults[-1])
            done.append((report, why))
    return tuple(done)


def _warmed_text(report: WarmReport, reasons: Mapping[str, Sequence[str]], options: EngineOptions) -> str:
    line = (
        f"{report.schema}: {counted(report.num_encodings, 'encoding')}, {size_text(report.nbytes)} as {options.keep} "
        f"in {options.store}; "
    )
    there = report.num_encodings - report.num_encoded
    if report.num_encoded:
        made = f"encoded {counted(report.num_encoded_tokens, 'token')} in {report.seconds:.1f} s"
        line += f"{made}, {there:,} were there" if there else made
    else:
        line += "all were there"
    lines = (f"  {reason}: {listed([path or ROOT for path in paths], _MAX_PATHS)}" for reason, paths in reasons.items())
    return "".join(f"{each}\n" for each in (line, *lines))
