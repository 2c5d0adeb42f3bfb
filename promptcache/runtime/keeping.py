"""What of a schema is kept, and how: warming it, pinning it, and by which codec.

Comes in: a schema as prepared, and the store that keeps it. Goes out: keys, and an account of the work. This file knows
no prompt, and not where a store keeps anything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from promptcache.diagnostics import TEXT, InvalidValue, PromptCacheError, StoreError, did_you_mean, one_of
from promptcache.kv import Codec, KVShape, Recipe, RunKV, SharedStore, Store, Tier
from promptcache.kv.codec import forms
from promptcache.kv.header import num_bytes
from promptcache.runtime.completion import WarmReport
from promptcache.runtime.encode import Progress
from promptcache.runtime.prepare import Fetcher, Prepared

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


def keys_of(prepared: Prepared, module: str | None) -> tuple[str, ...]:
    """Return the keys of a schema's encodings, or of those of one module and the modules in it.

    Raises:
        PromptCacheError: The schema has no such module.
    """
    if module is None:
        return prepared.keys
    TEXT.check("module", module, InvalidValue)
    path = module.strip("/")
    if path not in prepared.schema.modules:
        mend = did_you_mean(path, prepared.schema.modules) or "paths are written like city/hotel"
        raise PromptCacheError(f"schema '{prepared.schema.name}' has no module '{module}' ({mend})")
    runs = prepared.layout.runs
    within = [f"{runs[each.run].module}/".startswith(f"{path}/") for each in prepared.encodings]
    return tuple(recipe.key for recipe, inside in zip(prepared.recipes, within, strict=True) if inside)


def kept_bytes(recipe: Recipe, shape: KVShape) -> int:
    """Return the bytes that an encoding takes as its codec keeps it, without the header of a file."""
    return sum(num_bytes(form) for form in forms(recipe.codec, shape, recipe.num_tokens).values())


def warm(prepared: Prepared, fetcher: Fetcher, store: Store, shape: KVShape, progress: Progress | None) -> WarmReport:
    """Encode everything that a schema may need and that is not there yet, group by group.

    In the end every folder and URL of the store holds all of it, or the report says what it does not hold: what is
    found in memory and was lost below, or never written there, is written now.

    Args:
        store: What `fetcher` gets KV from.
        shape: Of the KV as the model computes it.
        progress: Called with the tokens that are done so far, found or encoded, and all tokens of the schema.
    """
    started = time.perf_counter()
    total, done = sum(recipe.num_tokens for recipe in prepared.recipes), 0
    encoded, encoded_tokens, faults = set[int](), 0, dict[str, None]()
    found = Counter[Tier]()
    lacking = frozenset[str]().union(*_lacking(store, prepared).values())
    for group in _groups(prepared):
        told = _told(progress, done, total)
        fetched = fetcher.fetch(prepared, group, told, patience_s=PATIENCE_S)
        encoded |= fetched.encoded
        encoded_tokens += fetched.num_encoded_tokens
        found.update(fetched.tiers.values())
        faults.update(dict.fromkeys(fetched.faults))
        for index, run in fetched.runs.items():
            if index not in fetched.encoded and prepared.recipes[index].key in lacking:
                faults.update(dict.fromkeys(_write(store, prepared.recipes[index], run)))
        done += sum(prepared.recipes[index].num_tokens for index in group)
        if progress is not None:
            progress(done, total)
    not_kept = {place: len(keys) for place, keys in _lacking(store, prepared).items()}
    if isinstance(store, SharedStore):
        faults.update(dict.fromkeys(store.untold()))
    why = next(iter(faults), "its limit has no room for them beside what is pinned and newer")
    num_keys = len(set(prepared.keys))
    for place, number in not_kept.items():
        faults[f"{number:,} of {num_keys:,} encodings are not kept in {place}: {why}"] = None
    return WarmReport(
        schema=prepared.schema.name,
        num_encodings=len(prepared.recipes),
        num_encoded=len(encoded),
        num_encoded_tokens=encoded_tokens,
        nbytes=sum(kept_bytes(recipe, shape) for recipe in prepared.recipes),
        seconds=time.perf_counter() - started,
        found=dict(found),
        not_kept=not_kept,
        faults=tuple(faults),
    )


def _lacking(store: Store, prepared: Prepared) -> Mapping[str, frozenset[str]]:
    return store.lacking(prepared.keys) if isinstance(store, SharedStore) else {}


def _write(store: Store, recipe: Recipe, run: RunKV) -> tuple[str, ...]:
    """Put KV that is there already into the tiers that lack it, and return what goes wrong."""
    try:
        store.put(recipe, run.keys, run.values)
    except StoreError as fault:
        return (str(fault),)
    return ()


def _told(progress: Progress | None, before: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(min(before + done, total), total)


def _groups(prepared: Prepared) -> Iterator[range]:
    start, size = 0, 0
    for index, recipe in enumerate(prepared.recipes):
        size += recipe.num_tokens
        if size >= GROUP_TOKENS:
            yield range(start, index + 1)
            start, size = index + 1, 0
    if start < len(prepared.recipes):
        yield range(start, len(prepared.recipes))
