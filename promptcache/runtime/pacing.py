"""How fast a model encodes and tiers load, here and now: measured, so that a store can load only where that pays.

Comes in: the state of a schema, an executor, and where KV is kept. Goes out: figures, kept in the store's folder. What
follows from them, `kv/pace.py` knows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import NamedTuple

import torch

from promptcache.diagnostics import StoreError
from promptcache.kv import (
    BlobTier,
    MemoryStore,
    Pace,
    StoreConfig,
    StoreSource,
    TieredStore,
    config_of,
    expand_home,
    open_blob_tiers,
)
from promptcache.runtime.executor import Executor
from promptcache.runtime.schema_state import SchemaState

Clock = Callable[[], float]

ENCODED_TOKENS = 512
"""What is encoded to see how fast that goes has about so many tokens, if anything has."""

ROUNDS = 3
MAX_LOADS = 16


class Load(NamedTuple):
    """What was loaded, as bytes of KV in the model's memory, and how long that took."""

    nbytes: float
    seconds: float


class Line(NamedTuple):
    """Seconds by bytes: `latency_s + nbytes / bytes_per_s`."""

    bytes_per_s: float
    latency_s: float


def measure_pace(
    state: SchemaState, executor: Executor, place: StoreSource | None, clock: Clock = time.perf_counter
) -> Pace:
    """Measure how fast a schema is encoded and loaded, and keep the figures in the store's folder for `pace="kept"`.

    Files are read as after a restart: from their disk, as far as the system lets go of what it holds of them, and with
    their checksums.

    Raises:
        StoreError: The store has no folder, or it cannot be written; or the schema has nothing to encode.
    """
    config = _with_folder(place)
    if not state.encodings:
        raise StoreError(f"schema '{state.schema.name}' has nothing to encode, so there is nothing to measure")
    lines = {tier.kind: _loading(state, executor, tier, clock) for tier in open_blob_tiers(config)}
    found = {tier: line for tier, line in lines.items() if line is not None}
    pace = Pace(
        encode_tokens_per_s=_tokens_per_s(state, executor, clock),
        load_bytes_per_s={tier: line.bytes_per_s for tier, line in found.items()},
        latency_s={tier: line.latency_s for tier, line in found.items()},
    )
    from promptcache.kv import keep_pace, pace_name  # folders need POSIX; engines do not

    name = pace_name(executor.fingerprint, executor.model.shape.device)
    keep_pace(expand_home(config.folder or ""), name, pace)
    return pace


def line_through(loads: Sequence[Load]) -> Line | None:
    """Return the line through the mean of the smaller half and that of the larger half; None without any loads.

    Where sizes or times are too much alike to tell a latency from a rate, all of the time counts as rate.
    """
    if not loads:
        return None
    ordered = sorted(loads)
    small, large = (_mean(half) for half in (ordered[: len(ordered) // 2] or ordered, ordered[len(ordered) // 2 :]))
    if large.nbytes >= 2 * small.nbytes and large.seconds > small.seconds:
        bytes_per_s = (large.nbytes - small.nbytes) / (large.seconds - small.seconds)
        latency_s = small.seconds - small.nbytes / bytes_per_s
        if latency_s >= 0:
            return Line(bytes_per_s, latency_s)
    mean = _mean(ordered)
    return Line(mean.nbytes / mean.seconds, 0.0)


def _with_folder(place: StoreSource | None) -> StoreConfig:
    config = config_of(place) if isinstance(place, str | os.PathLike) else place
    if not isinstance(config, StoreConfig) or config.folder is None:
        raise StoreError("measured figures are kept in a store's folder, and this engine has none; give store=…")
    return replace(config, disk_bytes=None)  # looking at files must not evict any


def _tokens_per_s(state: SchemaState, executor: Executor, clock: Clock) -> float:
    alone = {each: sum(part.num_tokens for part in (*each.context, each.whole)) for each in state.encodings}
    chosen = min(alone, key=lambda each: abs(alone[each] - ENCODED_TOKENS))
    model = executor.model
    seconds = []
    for _ in range(1 + ROUNDS):  # one to warm up
        fresh = Executor(model, MemoryStore(model.shape), lambda: executor.fingerprint)
        started = clock()
        fresh.fetch([chosen])
        _wait_for(model.shape.device)
        seconds.append(clock() - started)
    return alone[chosen] / median(seconds[1:])


def _loading(state: SchemaState, executor: Executor, tier: BlobTier, clock: Clock) -> Line | None:
    """Load encodings of all sizes, each of them once, to where the model has them."""
    shape = executor.model.shape
    by_size = sorted(state.encodings, key=lambda each: each.num_tokens)
    store, loads = TieredStore(MemoryStore(shape), (tier,)), []
    for encoding in by_size[:: -(-len(by_size) // MAX_LOADS)]:
        key = executor.key(encoding)
        tier.cool(key)
        started = clock()
        run = store.get(key).run
        _wait_for(shape.device)
        if run is not None:
            loads.append(Load(run.nbytes, clock() - started))
    return line_through(loads[1:] or loads)  # the first one warms up


def _mean(loads: Sequence[Load]) -> Load:
    return Load(fmean(each.nbytes for each in loads), fmean(each.seconds for each in loads))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
