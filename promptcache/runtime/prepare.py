"""Preparing a schema for one model, and fetching the KV that a request needs.

Comes in: a checked schema, a tokenizer, a store. Goes out: layout, encodings and keys, computed once per schema; then,
per request, KV by encoding, with what is missing encoded first. This file knows no prompt.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from promptcache.kv import RunKV, Store, encoding_key
from promptcache.language import CheckedSchema
from promptcache.layout import Encoding, Layout, Tokenizer, check_length, encodings, lay_out
from promptcache.runtime.encode import Progress, encode, missing_encodings
from promptcache.runtime.hf.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A schema as one engine serves it: immutable, so that a request keeps the one it started with.

    Attributes:
        keys: The store's key of each encoding, as long as `encodings`.
    """

    schema: CheckedSchema
    layout: Layout
    encodings: tuple[Encoding, ...]
    keys: tuple[str, ...]

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Keys with their numbers of tokens, in layout order."""
        return tuple((key, len(each.token_ids)) for key, each in zip(self.keys, self.encodings, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """KV by encoding index, and which encodings had to be computed for it (contexts included)."""

    runs: Mapping[int, RunKV]
    encoded: frozenset[int]
    num_encoded_tokens: int


def prepare(schema: CheckedSchema, tokenizer: Tokenizer, fingerprint: str, context_length: int) -> Prepared:
    """Lay a schema out and name its encodings.

    Args:
        fingerprint: Of model and tokenizer; enters every key.
        context_length: Positions that the model has.

    Raises:
        SchemaError: A filler longer than its slot, or more positions needed than the model has.
    """
    layout = lay_out(schema, tokenizer)
    check_length(layout, context_length)
    made = encodings(layout)
    keys: list[str] = []
    for each in made:
        context_keys = [keys[index] for index in each.context]
        keys.append(encoding_key(fingerprint, each.token_ids, each.position_ids, context_keys))
    return Prepared(schema=schema, layout=layout, encodings=made, keys=tuple(keys))


class Fetcher:
    """Gets KV from a store; what is not there is encoded, once, however many threads ask for it."""

    def __init__(self, model: Model, store: Store) -> None:
        self._model = model
        self._store = store
        self._lock = threading.Lock()

    def fetch(self, prepared: Prepared, wanted: Sequence[int], progress: Progress | None = None) -> Fetched:
        """Return the KV of the encodings `wanted` (indices), encoding them and their contexts where missing."""
        held = self._held(prepared, wanted)
        if len(held) == len({prepared.keys[index] for index in wanted}):
            runs = {index: held[prepared.keys[index]] for index in wanted}
            return Fetched(runs=runs, encoded=frozenset(), num_encoded_tokens=0)
        with self._lock:  # whoever waited here may find the work done
            held = self._held(prepared, range(len(prepared.keys)))
            missing = missing_encodings(prepared.encodings, prepared.keys, wanted, held)
            made = encode(self._model, prepared.encodings, prepared.keys, missing, self._store, held, progress)
        by_key = {**held, **made}
        return Fetched(
            runs={index: by_key[prepared.keys[index]] for index in wanted},
            encoded=frozenset(each.index for each in missing),
            num_encoded_tokens=sum(len(each.token_ids) for each in missing),
        )

    def _held(self, prepared: Prepared, wanted: Iterable[int]) -> dict[str, RunKV]:
        found = ((prepared.keys[index], self._store.get(prepared.keys[index])) for index in wanted)
        return {key: run for key, run in found if run is not None}
