"""Preparing a schema for one model, and fetching the KV that a request needs.

Comes in: a checked schema, a tokenizer, a store. Goes out: layout, encodings and recipes, made once per schema; then,
per request, KV by encoding, with what is missing encoded first. This file knows no prompt.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from promptcache.kv import Codec, Lookup, Recipe, RunKV, SharedStore, Store, Tier, context_digest
from promptcache.language import CheckedSchema
from promptcache.layout import Encoding, Layout, Tokenizer, check_length, encodings, lay_out
from promptcache.runtime.encode import Progress, encode, missing_encodings
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


class Fetcher:
    """Gets KV from a store; what is not there is encoded, once, however many threads ask for it.

    A store that does not take what was encoded fails no request: its KV goes with the request, and the next one finds
    it missing.
    """

    def __init__(self, model: Model, store: Store) -> None:
        self._model = model
        self._store = store
        self._lock = threading.Lock()

    def fetch(
        self,
        prepared: Prepared,
        wanted: Sequence[int],
        progress: Progress | None = None,
        *,
        claim: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Fetched:
        """Return the KV of the encodings `wanted` (indices), encoding them and their contexts where missing.

        Args:
            claim: The key that stands for this work between processes; None takes the first that is missing.
            patience_s: How long to wait for another process that has claimed it.
        """
        lookups = self._look_up(prepared, wanted)
        missing = [index for index, lookup in lookups.items() if lookup.run is None]
        if not missing:
            return _fetched(wanted, lookups, {}, ())
        with self._lock, self._claimed(claim or prepared.recipes[missing[0]].key, patience_s):
            return self._encode(prepared, wanted, lookups, progress)  # whoever waited here may find the work done

    def _claimed(self, key: str, patience_s: float) -> AbstractContextManager[bool]:
        return self._store.claim(key, patience_s) if isinstance(self._store, SharedStore) else nullcontext(False)

    def _look_up(self, prepared: Prepared, wanted: Iterable[int]) -> dict[int, Lookup]:
        return {index: self._store.get(prepared.recipes[index].key) for index in wanted}

    def _encode(
        self, prepared: Prepared, wanted: Sequence[int], before: Mapping[int, Lookup], progress: Progress | None
    ) -> Fetched:
        lookups = dict(before)

        def is_held(index: int) -> bool:
            if index not in lookups or lookups[index].run is None:
                faults = lookups[index].faults if index in lookups else ()
                again = self._store.get(prepared.recipes[index].key)
                lookups[index] = again._replace(faults=faults + again.faults)
            return lookups[index].run is not None

        missing = missing_encodings(prepared.encodings, wanted, is_held)
        held = {prepared.recipes[index].key: each.run for index, each in lookups.items() if each.run is not None}
        faults: list[str] = []
        made = encode(
            self._model, prepared.encodings, prepared.recipes, missing, self._store, held, progress, faults.append
        )
        faults += self._store.untold() if isinstance(self._store, SharedStore) else ()
        encoded = {each.index: made[prepared.recipes[each.index].key] for each in missing}
        return _fetched(wanted, lookups, encoded, missing, faults)


def _fetched(
    wanted: Sequence[int],
    lookups: Mapping[int, Lookup],
    encoded: Mapping[int, RunKV],
    missing: Sequence[Encoding],
    faults: Iterable[str] = (),
) -> Fetched:
    found = {index: each.run for index, each in lookups.items() if each.run is not None}
    runs = {**found, **encoded}
    return Fetched(
        runs={index: runs[index] for index in wanted},
        encoded=frozenset(encoded),
        num_encoded_tokens=sum(len(each.token_ids) for each in missing),
        tiers={index: lookups[index].tier for index in wanted if index in found},
        moved_bytes=sum(each.moved_bytes for each in lookups.values()),
        faults=tuple(dict.fromkeys([*(fault for each in lookups.values() for fault in each.faults), *faults])),
    )
