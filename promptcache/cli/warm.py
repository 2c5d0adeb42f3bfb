"""`promptcache warm`: encode schemas ahead of time and keep their KV, or estimate what that takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from promptcache.cli.cache import Entry, open_folder, store_entries
from promptcache.cli.console import progress
from promptcache.cli.documents import Sources, read_schemas
from promptcache.cli.exits import EnvironmentMissing
from promptcache.cli.options import (
    DEFAULT_STORE,
    GroupedCommand,
    Output,
    context_option,
    schemas_argument,
    with_json,
)
from promptcache.cli.output import fact_text, warn
from promptcache.cli.request import TokenLimits, all_encodings
from promptcache.cli.settings import OF_ENCODINGS, EngineOptions, collected, engine_options
from promptcache.diagnostics import ROOT, counted, listed, size_text
from promptcache.language import CheckedSchema
from promptcache.progress import tracked
from promptcache.tokenizer import Dtype, read_facts

if TYPE_CHECKING:
    from promptcache.engine import Engine

_NEW = "new"
_MAX_PATHS = 8


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
        return _estimate(checked, engine)
    entries: Sequence[Entry] = ()
    if verbose:
        assert engine.store is not None, "warm has a store"
        with suppress(EnvironmentMissing):  # there is none yet
            entries = store_entries(open_folder(engine.store))
    loaded = replace(engine, memory=0).load()  # KV that is kept need not stay in memory
    loaded.store.probe()  # before anything is encoded
    reports, lines, faults = [], list[str](), list[str]()
    with progress() as show:
        for schema in checked:
            loaded.add_schema(schema.source)
            reasons = _reasons(schema.name, loaded, engine.keep, entries) if verbose else {}
            (report,) = loaded.warm(
                schema.name, members=True, pairs=True, progress=partial(show, f"{schema.name}, tokens")
            )
            if report.not_kept:
                raise EnvironmentMissing(report.faults[-1])
            faults += report.faults
            reports.append({**asdict(report), **({"reasons": reasons} if verbose else {})})
            size = f"{counted(report.num_encodings, 'encoding')}, {size_text(report.nbytes)} as {engine.keep}"
            made, there = "all were there", report.num_encodings - report.num_encoded
            if report.num_encoded:
                made = f"encoded {counted(report.num_encoded_tokens, 'token')} in {report.seconds:.1f} s"
                made += f", {there:,} were there" if there else ""
            lines.append(f"{schema.name}: {size} in {engine.store}; {made}")
            for reason, paths in reasons.items():
                lines.append(f"  {reason}: {listed([path or ROOT for path in paths], _MAX_PATHS)}")
    warn(*faults)
    data = {"model": engine.model, "store": engine.store, "keep": engine.keep, "schemas": reports}
    return Output(data=data, text="".join(f"{line}\n" for line in lines))


def _estimate(schemas: Sequence[CheckedSchema], options: EngineOptions) -> Output:
    """Estimate the work for each schema from its tokens and `config.json`, without loading a model."""
    import torch

    from promptcache.kv import Codec, KVShape, stored_bytes

    limits, keep = TokenLimits.of(options.model), options.keep
    facts = read_facts(options.model, limits.folder, Dtype(options.dtype))
    on_cpu = options.device == "cpu" if options.device else not torch.cuda.is_available()
    shape = KVShape(
        num_layers=facts.num_layers,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        dtype=torch.float32 if facts.is_wider_on_cpu and on_cpu else getattr(torch, facts.dtype),
        device=torch.device("cpu"),
    )
    found, lines = [], list[str]()
    num_tokens = num_bytes = 0  # of all schemas
    with progress() as show:
        for schema in schemas:
            encodings = all_encodings(schema, limits.lay_out(schema)[0], limits.tokenizer)
            sizes = {each.digest: each.num_tokens for _, each in tracked(encodings, show, f"{schema.name}, encodings")}
            own, nbytes = sum(sizes.values()), sum(stored_bytes(Codec(keep), shape, size) for size in sizes.values())
            found.append({"schema": schema.name, "num_encodings": len(sizes), "num_tokens": own, "nbytes": nbytes})
            made = f"{counted(own, 'token')} in {counted(len(sizes), 'encoding')} to encode"
            lines.append(f"{schema.name}: {made}, {size_text(nbytes)} kept as {keep}")
            num_tokens, num_bytes = num_tokens + own, num_bytes + nbytes
    if len(found) > 1:
        together = f"{counted(num_tokens, 'token')}, {size_text(num_bytes)}"
        lines.append(f"together: {together}; less where schemas share text")
    data = {"model": options.model, "keep": keep, "schemas": found}
    return Output(data=data, text="".join(f"{line}\n" for line in lines))


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
