"""The model at work for `promptcache warm`: encoding, and measuring what a lossy codec costs.

Comes in: checked schemas and options. Goes out: KV in a store, and reports. This file imports torch, so it is imported
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptcache.cli.answer import engine_on
from promptcache.cli.exits import EnvironmentMissing
from promptcache.cli.losses import measured_loss
from promptcache.cli.output import counted
from promptcache.cli.sizes import size_text
from promptcache.cli.stores import store_config
from promptcache.cli.warm import WarmOptions, shown_progress
from promptcache.engine import Engine
from promptcache.kv import SharedStore
from promptcache.kv.disk import DiskShelf
from promptcache.kv.opening import config_of
from promptcache.language import CheckedSchema
from promptcache.runtime.completion import WarmReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """What was done for one schema.

    Attributes:
        loss: What its codec costs, by the names under which files keep it; empty where nothing is lost or known.
    """

    report: WarmReport
    loss: Mapping[str, str]


def warm_schemas(schemas: Sequence[CheckedSchema], options: WarmOptions) -> tuple[Warmed, ...]:
    """Encode everything of these schemas that the store does not have.

    Raises:
        PromptCacheError: The model, the device or the store cannot be used, or not everything could be kept.
    """
    config = store_config(options.store, options.limit, memory_bytes=0)  # what is kept need not stay in memory, too
    engine = engine_on(options.model, options.device, options.dtype, config)
    done = []
    for schema in schemas:
        engine.add_schema(schema.source, keep=options.keep)
        loss = _loss(engine, schema, options)
        with shown_progress(schema.name) as progress:
            (report,) = engine.warm(schema.name, progress=progress)
        _check_kept(engine, schema.name, report, options)
        done.append(Warmed(report=report, loss=loss))
    return tuple(done)


def warmed_text(done: Warmed, options: WarmOptions) -> str:
    """Say in a line what was made and what was there, and in another what is lost."""
    report = done.report
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
    if options.keep != "full":
        line += f"\n{report.schema}: {_loss_text(done.loss)}"
    return f"{line}\n"


def warmed_data(done: Sequence[Warmed], options: WarmOptions) -> dict[str, Any]:
    """Return what was done as data."""
    return {
        "model": options.model,
        "store": options.store,
        "keep": options.keep,
        "schemas": [{**asdict(each.report), "loss": dict(each.loss) or None} for each in done],
    }


def _loss(engine: Engine, schema: CheckedSchema, options: WarmOptions) -> Mapping[str, str]:
    """Return what quantizing costs: measured now, before the first file is written, and kept in all of them."""
    if options.keep == "full":
        return {}
    keys = engine.keys(schema.name)
    if not set(keys) - set(engine.store.keys()):
        return _known_loss(options, keys)
    loss = measured_loss(engine, schema, options.keep, is_demo=options.model == "demo")
    if isinstance(engine.store, SharedStore):
        engine.store.note(dict.fromkeys(keys, loss))
    return loss


def _known_loss(options: WarmOptions, keys: Sequence[str]) -> Mapping[str, str]:
    """Return what was measured when files were made that are there."""
    if config_of(options.store).folder is None:
        return {}
    header = DiskShelf(Path(options.store)).header(keys[0]) if keys else None
    return {} if header is None else {name: text for name, text in header.facts.items() if name.startswith("loss.")}


def _loss_text(loss: Mapping[str, str]) -> str:
    if not loss:
        return "its loss was not measured: the schema has no valid example"
    return (
        f"logits are off by {loss['loss.logits']} (relative to the largest), the likeliest token is the same "
        f"in {loss['loss.top1']} of {loss['loss.places']} places, over {loss['loss.prompts']}"
    )


def _check_kept(engine: Engine, name: str, report: WarmReport, options: WarmOptions) -> None:
    """Say it where encodings were made and not kept: a later start would make them again."""
    keys = set(engine.keys(name))
    lost = len(keys - set(engine.store.keys()))
    if lost:
        why = report.faults[0] if report.faults else "its limit has no room for them beside what is pinned and newer"
        raise EnvironmentMissing(f"{lost:,} of {counted(len(keys), 'encoding')} are not kept in {options.store}: {why}")
