"""The model at work for `promptcache warm`: encoding, and measuring what a lossy codec costs.

Comes in: checked schemas and options. Goes out: KV in a store, and reports. This file imports torch, so it is imported
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

from promptcache.cli.answer import engine_on
from promptcache.cli.cache import loss_text
from promptcache.cli.console import progress, show_loading
from promptcache.cli.exits import EnvironmentMissing
from promptcache.cli.losses import measured_loss
from promptcache.cli.output import counted
from promptcache.cli.sizes import size_text
from promptcache.cli.stores import store_config
from promptcache.cli.warm import WarmOptions
from promptcache.diagnostics import StoreError
from promptcache.engine import Engine
from promptcache.kv import config_of, open_blob_tiers
from promptcache.language import CheckedSchema
from promptcache.runtime import WarmReport

_ASKED_FILES = 8


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
    done = []
    with progress() as show:
        show_loading(show, options.model)
        engine = engine_on(options.model, options.device, options.dtype, config)
        for schema in schemas:
            engine.add_schema(schema.source, keep=options.keep)
            loss = _loss(engine, schema, options)
            (report,) = engine.warm(schema.name, progress=partial(show, f"{schema.name}, tokens"))
            if report.not_kept:
                raise EnvironmentMissing(report.faults[-1])
            done.append(Warmed(report=report, loss=loss))
    return tuple(done)


def work_text(work: Sequence[Warmed], options: WarmOptions) -> str:
    """Say for each schema what was made, was there and is lost."""
    return "".join(_warmed_text(each, options) for each in work)


def work_data(work: Sequence[Warmed], options: WarmOptions) -> dict[str, Any]:
    """Return what was done as data."""
    return {
        "model": options.model,
        "store": options.store,
        "keep": options.keep,
        "schemas": [{**asdict(each.report), "loss": dict(each.loss) or None} for each in work],
    }


def _warmed_text(done: Warmed, options: WarmOptions) -> str:
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
        unknown = "its loss was not measured: the schema has no valid example"
        line += f"\n{report.schema}: {loss_text(done.loss) or unknown}"
    return f"{line}\n"


def _loss(engine: Engine, schema: CheckedSchema, options: WarmOptions) -> Mapping[str, str]:
    """Return what quantizing costs: measured before the first file is written, and kept in all of them."""
    if options.keep == "full":
        return {}
    keys = engine.keys(schema.name)
    if set(keys) - set(engine.store.keys()):
        loss = measured_loss(engine, schema, options.keep, is_demo=options.model == "demo")
    else:
        loss = _known_loss(options, keys)
    engine.store.note(dict.fromkeys(keys, loss))
    return loss


def _known_loss(options: WarmOptions, keys: Sequence[str]) -> Mapping[str, str]:
    """Return what was measured when the files that are there were made, from the first of them that can be read."""
    tiers = open_blob_tiers(config_of(options.store))
    for tier, key in product(tiers, keys[:_ASKED_FILES]):
        with suppress(StoreError):  # warming finds out by itself, and heals it
            stored = tier.read(key)
            facts = {} if stored is None else stored.facts
            if loss := {name: text for name, text in facts.items() if name.startswith("loss.")}:
                return loss
    return {}
