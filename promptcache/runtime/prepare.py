"""Preparing a schema for one model, and fetching the KV that a request needs.

Comes in: a checked schema, a tokenizer, a store. Goes out: layout, encodings and recipes, made once per schema; then,
per request, KV by encoding, with what is missing encoded first. This file knows no prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from promptcache.kv import Codec, Lookup, Recipe, RunKV, SharedStore, Store, Tier, context_digest
from promptcache.language import CheckedSchema
from promptcache.layout import Encoding, Layout, Tokenizer, check_length, encodings, lay_out
from promptcache.locks import new_lock
from promptcache.runtime.encode import Chain, Progress, encode_batch, encoding_batches, missing_encodings
from promptcache.runtime.hf.model import Model

PATIENCE_S = 60.0
"""How long a request waits for another process that encodes what it needs; then it does so itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A schema as one engine serves it: immutable, so that a request keeps the one it started with.

    Attributes:
        recipes: What each encoding's KV depends on, as long as `encodings`.
    """

    schema: CheckedSchema
    layout: Layout
    encodings: tuple[Encoding, ...]
    recipes: tuple[Recipe, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The store's key of each encoding."""
        return tuple(recipe.key for recipe in self.recipes)

    @property
    def notes(self) -> dict[str, dict[str, str]]:
        """What is kept with each encoding for people to read, by key: the schema and module that it was made for."""
        runs = self.layout.runs
        return {
            recipe.key: {"schema": self.schema.name, "module": runs[each.run].module}
            for each, recipe in zip(self.encodings, self.recipes, strict=True)
        }

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Keys with their numbers of tokens, in layout order."""
        return tuple((recipe.key, recipe.num_tokens) for recipe in self.recipes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """KV by encoding index, and what it took to have it.

    Attributes:
        encoded: Encodings that had to be computed (contexts included).
        tiers: Where each of the others in `runs` was found.
        moved_bytes: Bytes that stores copied.
        faults: What went wrong in stores and was made good, one sentence each.
    """

    runs: Mapping[int, RunKV]
    encoded: frozenset[int]
    num_encoded_tokens: int
    tiers: Mapping[int, Tier]
    moved_bytes: int
    faults: tuple[str, ...]


def prepare(
    schema: CheckedSchema, tokenizer: Tokenizer, fingerprint: str, context_length: int, codec: Codec = Codec.FULL
) -> Prepared:
    """Lay a schema out and name its encodings.

    Args:
        fingerprint: Of model and tokenizer; enters every key.
        context_length: Positions that the model has.
        codec: How its KV is kept.

    Raises:
        SchemaError: A filler longer than its slot, or more positions needed than the model has.
    """
    layout = lay_out(schema, tokenizer)
    check_length(layout, context_length)
    made = encodings(layout)
    return Prepared(schema=schema, layout=layout, encodings=made, recipes=make_recipes(made, fingerprint, codec))


def make_recipes(made: Sequence[Encoding], fingerprint: str, codec: Codec = Codec.FULL) -> tuple[Recipe, ...]:
    """Return the recipe of each encoding; contexts come first."""
    recipes: list[Recipe] = []
    for each in made:
        context = context_digest(recipes[index].key for index in each.context)
        recipes.append(
            Recipe(
                fingerprint=fingerprint,
                token_ids=each.token_ids,
                position_ids=each.position_ids,
                context=context,
                codec=codec,
            )
        )
    return tuple(recipes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Encodings of one forward pass: those that it computed, or those that others computed in the meantime.

    Attributes:
        runs: Their KV, by encoding index.
        lookups: Where the store had them; empty for those computed here.
        faults: What went wrong in the store, one sentence each.
    """

    runs: Mapping[int, RunKV]
    lookups: Mapping[int, Lookup]
    faults: tuple[str, ...] = ()


class Fetcher:
    """Gets KV from a store; what is not there is encoded, once, however many threads ask for it.

    A store that does not take what was encoded fails no request: its KV goes with the request, and the next one finds
    it missing.
    """

    def __init__(self, model: Model, store: Store) -> None:
        self._model = model
        self._store = store
        self._lock = new_lock()

    def fetch(
        self,
        prepared: Prepared,
        wanted: Sequence[int],
        progress: Progress | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> Fetched:
        """Return the KV of the encodings `wanted` (indices), encoding them and their contexts where missing.

        Args:
            progress: Called after each forward pass with the tokens that are done, and all tokens that were missing.
                It may call the engine: no lock is held.
            patience_s: How long to wait for another process that encodes the same; then it is encoded here, too.
        """
        lookups = self.look_up(prepared, wanted)
        encoded: dict[int, RunKV] = {}
        faults = [fault for each in lookups.values() for fault in each.faults]
        total = sum(prepared.recipes[each.index].num_tokens for each in missing_of(prepared, wanted, lookups))
        done = 0
        for group in self.encode_missing(prepared, wanted, lookups, patience_s=patience_s):
            lookups.update(group.lookups)
            encoded.update((index, run) for index, run in group.runs.items() if index not in group.lookups)
            faults += group.faults
            done += sum(prepared.recipes[index].num_tokens for index in group.runs)
            if progress is not None:
                progress(done, total)
        if encoded and isinstance(self._store, SharedStore):
            faults += self._store.untold()
        return _fetched(prepared, wanted, lookups, encoded, faults)

    def look_up(self, prepared: Prepared, wanted: Sequence[int]) -> dict[int, Lookup]:
        """Ask the store for the encodings `wanted`, and for the contexts of those that it does not have.

        Any thread may call it at any time; nothing is encoded and no lock is held.
        """
        lookups: dict[int, Lookup] = {}

        def is_held(index: int) -> bool:
            lookups[index] = self._store.get(prepared.recipes[index].key)
            return lookups[index].run is not None

        missing_encodings(prepared.encodings, wanted, is_held)
        return lookups

    def encode_missing(
        self,
        prepared: Prepared,
        wanted: Sequence[int],
        lookups: Mapping[int, Lookup],
        *,
        patience_s: float = PATIENCE_S,
    ) -> Iterator[Encoded]:
        """Encode what `look_up` did not find, one forward pass after another, contexts first.

        Locks are held during a forward pass and not while the iterator waits to be asked for the next one. So threads
        and processes that need the same encodings share the work.

        Args:
            wanted: What was given to `look_up`.
            lookups: What it returned.
            patience_s: How long to wait for another process that encodes the same; then it is encoded here, too.
        """
        recipes = prepared.recipes
        held = {recipes[index].key: each.run for index, each in lookups.items() if each.run is not None}
        while missing := missing_encodings(prepared.encodings, wanted, lambda index: recipes[index].key in held):
            for batch in encoding_batches(self._model, missing, recipes):
                group = self._encode(prepared, batch, held, patience_s)
                held.update((recipes[index].key, run) for index, run in group.runs.items())
                yield group
                if group.lookups:
                    break  # others are at work on the same: find out what is left to do

    def _encode(
        self, prepared: Prepared, batch: tuple[Chain, ...], held: Mapping[str, RunKV], patience_s: float
    ) -> Encoded:
        """Encode a batch, unless another thread or process has encoded any of it while this one waited."""
        recipes = prepared.recipes
        indices = [link.index for chain in batch for link in chain.links]
        with self._claimed(recipes[indices[0]].key, patience_s), self._lock:
            again = {index: self._store.get(recipes[index].key) for index in indices}
            found = {index: each.run for index, each in again.items() if each.run is not None}
            faults = [fault for each in again.values() for fault in each.faults]
            if found:
                return Encoded(runs=found, lookups={index: again[index] for index in found}, faults=tuple(faults))
            made = encode_batch(self._model, prepared.encodings, recipes, batch, self._store, held, faults.append)
        return Encoded(runs={index: made[recipes[index].key] for index in indices}, lookups={}, faults=tuple(faults))

    def _claimed(self, key: str, patience_s: float) -> AbstractContextManager[bool]:
        return self._store.claim(key, patience_s) if isinstance(self._store, SharedStore) else nullcontext(False)


def missing_of(prepared: Prepared, wanted: Sequence[int], lookups: Mapping[int, Lookup]) -> tuple[Encoding, ...]:
    """Return what is to be encoded for `wanted` after `look_up` returned `lookups`, contexts first."""
    return missing_encodings(prepared.encodings, wanted, lambda index: lookups[index].run is not None)


def _fetched(
    prepared: Prepared,
    wanted: Sequence[int],
    lookups: Mapping[int, Lookup],
    encoded: Mapping[int, RunKV],
    faults: Iterable[str],
) -> Fetched:
    found = {index: each.run for index, each in lookups.items() if each.run is not None}
    runs = {**found, **encoded}
    return Fetched(
        runs={index: runs[index] for index in wanted},
        encoded=frozenset(encoded),
        num_encoded_tokens=sum(prepared.recipes[index].num_tokens for index in encoded),
        tiers={index: lookups[index].tier for index in wanted if index in found},
        moved_bytes=sum(each.moved_bytes for each in lookups.values()),
        faults=tuple(dict.fromkeys(faults)),
    )
