"""What of a schema is kept, and how: warming it, pinning it, and by which codec.

Comes in: a schema as prepared, and the store that keeps it. Goes out: keys, and an account of the work. This file knows
no prompt, and not where a store keeps anything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from promptcache.diagnostics import StoreError, one_of
from promptcache.kv import Codec, KVShape, Recipe, RunKV, SharedStore, Store, Tier
from promptcache.kv.codec import forms
from promptcache.kv.header import num_bytes
from promptcache.layout import Encoding
from promptcache.runtime.completion import WarmReport
from promptcache.runtime.encode import Progress
from promptcache.runtime.executor import Executor
from promptcache.runtime.schema_state import SchemaState

GROUP_TOKENS = 16_384
"""Tokens that are fetched together while a schema is warmed, at least: what no budget has room for goes after each."""

PATIENCE_S = 1800.0
"""How long warming waits for another process that is at the same group."""

_CODEC = one_of(Codec)


@runtime_checkable
class Pinning(Protocol):
    """What a store can do besides, if anything of it may be evicted."""

    def pin(self, keys: Iterable[str]) -> None:
        """Keep these keys from eviction, whether they are there already or come later."""

    def unpin(self, keys: Iterable[str]) -> None:
        """Take back `pin`."""


def codec_named(name: str) -> Codec:
    """Return how KV is kept under this name.

    Raises:
        StoreError: There is no such codec.
    """
    _CODEC.check("keep", name, StoreError)
    return Codec(name)


def pinning(store: Store) -> Pinning:
    """Return a store as one that can pin.

    Raises:
        StoreError: It cannot.
    """
    if not isinstance(store, Pinning):
        raise StoreError(f"{type(store).__name__} cannot pin encodings: it has no pin and unpin")
    return store


def kept_bytes(recipe: Recipe, shape: KVShape) -> int:
    """Return the bytes that an encoding takes as its codec keeps it, without the header of a file."""
    return sum(num_bytes(form) for form in forms(recipe.codec, shape, recipe.num_tokens).values())


def warm(state: SchemaState, executor: Executor, progress: Progress | None) -> WarmReport:
    """Encode everything that a schema may need and that is not there yet, group by group.

    In the end every folder and URL of the store holds all of it, or the report says what it does not hold: what is
    found in memory and was lost below, or never written there, is written now.

    Args:
        executor: Has the model and the store.
        progress: Called with the tokens that are done so far, found or encoded, and all tokens of the schema.
    """
    started = time.perf_counter()
    encodings, store = state.encodings, executor.store
    total, done = sum(each.num_tokens for each in encodings), 0
    encoded, faults = set[Encoding](), dict[str, None]()
    found = Counter[Tier]()
    keys = [executor.key(each) for each in encodings]
    lacking = frozenset[str]().union(*_lacking(store, keys).values())
    for group in _groups(encodings):
        fetched = executor.fetch(group, _offset(progress, done, total), patience_s=PATIENCE_S)
        encoded |= fetched.encoded
        found.update(fetched.tiers.values())
        faults.update(dict.fromkeys(fetched.faults))
        for each, run in fetched.runs.items():
            if each not in fetched.encoded and executor.key(each) in lacking:
                faults.update(dict.fromkeys(_write(store, executor.recipe(each), run)))
        done += sum(each.num_tokens for each in group)
        if progress is not None:
            progress(done, total)
    not_kept = {place: len(lost) for place, lost in _lacking(store, keys).items()}
    if isinstance(store, SharedStore):
        faults.update(dict.fromkeys(store.untold()))
    why = next(iter(faults), "its limit has no room for them beside what is pinned and newer")
    for place, number in not_kept.items():
        faults[f"{number:,} of {len(keys):,} encodings are not kept in {place}: {why}"] = None
    return WarmReport(
        schema=state.schema.name,
        num_encodings=len(encodings),
        num_encoded=len(encoded),
        num_encoded_tokens=sum(each.num_tokens for each in encoded),
        nbytes=sum(kept_bytes(executor.recipe(each), executor.model.shape) for each in encodings),
        seconds=time.perf_counter() - started,
        found=dict(found),
        not_kept=not_kept,
        faults=tuple(faults),
    )


def _lacking(store: Store, keys: Sequence[str]) -> Mapping[str, frozenset[str]]:
    return store.lacking(keys) if isinstance(store, SharedStore) else {}


def _write(store: Store, recipe: Recipe, run: RunKV) -> tuple[str, ...]:
    """Put KV that is there already into the tiers that lack it, and return what goes wrong."""
    try:
        store.put(recipe, run.keys, run.values)
    except StoreError as fault:
        return (str(fault),)
    return ()


def _offset(progress: Progress | None, before: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(min(before + done, total), total)


def _groups(encodings: Sequence[Encoding]) -> Iterator[Sequence[Encoding]]:
    start, size = 0, 0
    for index, encoding in enumerate(encodings):
        size += encoding.num_tokens
        if size >= GROUP_TOKENS:
            yield encodings[start : index + 1]
            start, size = index + 1, 0
    if start < len(encodings):
        yield encodings[start:]
