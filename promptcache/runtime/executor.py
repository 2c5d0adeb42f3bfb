"""The executor: KV of the parts that a request names, fetched or encoded, and linked with its new tokens.

Comes in: handles of KV (`KVPart`, `Encoding`) and new tokens. Goes out: a linked request, or its logits. Every caller
takes this way: generation, batches, logits, the self-test, `promptcache.testing` and the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from promptcache.kv import Codec, KVHandle, Lookup, Recipe, Store, Tier
from promptcache.layout import Encoding, RequestTokens
from promptcache.locks import new_lock
from promptcache.runtime.coalesce import Pool
from promptcache.runtime.encode import Chain, Progress, compute, encoding_batches, missing_encodings, stored
from promptcache.runtime.generate import request_logits
from promptcache.runtime.hf.model import Model
from promptcache.runtime.link import Linked, link

PATIENCE_S = 60.0
"""How long a request waits for another process that encodes what it needs; then it is encoded here, too."""

_MAX_KEYS = 1 << 16  # remembered, at about 200 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """KV of encodings, and what it took to have it.

    Attributes:
        runs: KV of each encoding that was wanted.
        encoded: Encodings that were computed, contexts included.
        tiers: Where each of the others was found.
        moved_bytes: Bytes that stores copied.
        faults: What went wrong in stores and did not stop the request, one sentence each.
    """

    runs: Mapping[Encoding, KVHandle]
    encoded: frozenset[Encoding]
    tiers: Mapping[Encoding, Tier]
    moved_bytes: int
    faults: tuple[str, ...]

    @property
    def num_encoded_tokens(self) -> int:
        """Tokens of all encodings that were computed."""
        return sum(each.num_tokens for each in self.encoded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Encodings of one forward pass: computed by it, or by another thread or process in the meantime.

    Attributes:
        runs: Their KV.
        lookups: Where the store had them; empty where they were computed here.
        faults: What went wrong in the store, one sentence each.
    """

    runs: Mapping[Encoding, KVHandle]
    lookups: Mapping[Encoding, Lookup]
    faults: tuple[str, ...]


class Executor:
    """A model with the store of its KV. Any thread may call any method.

    A missing encoding is computed once, however many threads ask for it. A store that does not take what was computed
    fails no request: the KV goes with the request, and the next one computes it again.
    """

    def __init__(self, model: Model, store: Store, fingerprint: Callable[[], str], pool: Pool | None = None) -> None:
        """Put a model and a store together.

        Args:
            fingerprint: Returns that of model and tokenizer, which enters every key; asked when it is first needed.
            pool: Where small segments are coalesced; None links every segment where it lies.
        """
        self.model = model
        self.store = store
        self.pool = pool
        self._fingerprint = fingerprint
        self._keys: dict[str, str] = {}
        self._lock = new_lock()

    @cached_property
    def fingerprint(self) -> str:
        """Digest over model and tokenizer; enters every key of the store."""
        return self._fingerprint()

    def key(self, encoding: Encoding) -> str:
        """Return the store's key of an encoding, 64 hexadecimal digits."""
        key = self._keys.get(encoding.digest)
        if key is None:
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            key = self._keys[encoding.digest] = self.recipe(encoding).key
        return key

    def recipe(self, encoding: Encoding) -> Recipe:
        """Return what the store keeps about an encoding beside its KV."""
        return Recipe(
            fingerprint=self.fingerprint,
            digest=encoding.digest,
            num_tokens=encoding.num_tokens,
            first_position=encoding.position_ids[0],
            last_position=encoding.position_ids[-1],
            codec=Codec(encoding.codec),
        )

    def link(self, tokens: RequestTokens) -> Linked:
        """Fetch the KV of a request's parts and link it with its new tokens."""
        return self.link_fetched(tokens, self.fetch(part.encoding for part in tokens.parts))

    def link_fetched(self, tokens: RequestTokens, fetched: Fetched) -> Linked:
        """As `link`, with KV that was fetched already."""
        return link(tokens, fetched.runs, self.model, self.pool)

    def logits(self, tokens: RequestTokens) -> torch.Tensor:
        """Return the logits `[N, V]` of a request's N new tokens, in position order."""
        return request_logits(self.model, self.link(tokens))

    def fetch(
        self, wanted: Iterable[Encoding], progress: Progress | None = None, *, patience_s: float = PATIENCE_S
    ) -> Fetched:
        """Return the KV of the encodings `wanted`; they and their contexts are computed where missing.

        Args:
            progress: Called after each forward pass with the tokens that are done, and all tokens that were missing.
                It may call the engine: no lock is held.
            patience_s: How long to wait for another process that encodes the same; then it is encoded here, too.
        """
        wanted = tuple(dict.fromkeys(wanted))
        lookups = self.look_up(wanted)
        faults = [fault for each in lookups.values() for fault in each.faults]
        encoded: dict[Encoding, KVHandle] = {}
        total = sum(each.num_tokens for each, lookup in lookups.items() if lookup.run is None)
        done = 0
        for group in self.encode_missing(wanted, lookups, patience_s=patience_s):
            lookups.update(group.lookups)
            encoded.update((each, run) for each, run in group.runs.items() if each not in group.lookups)
            faults += group.faults
            done += sum(each.num_tokens for each in group.runs)
            if progress is not None:
                progress(done, total)
        if encoded:
            faults += self.store.faults()
        found = {each: lookup.run for each, lookup in lookups.items() if lookup.run is not None}
        runs = {**found, **encoded}
        return Fetched(
            runs={each: runs[each] for each in wanted},
            encoded=frozenset(encoded),
            tiers={each: lookups[each].tier for each in wanted if each in found},
            moved_bytes=sum(each.moved_bytes for each in lookups.values()),
            faults=tuple(dict.fromkeys(faults)),
        )

    def look_up(self, wanted: Iterable[Encoding]) -> dict[Encoding, Lookup]:
        """Ask the store for the encodings `wanted`, and for the contexts of those that it does not have.

        Nothing is computed and no lock is held.
        """
        lookups: dict[Encoding, Lookup] = {}
        unknown = tuple(dict.fromkeys(wanted))
        while unknown:
            found = self._get_many(unknown)
            lookups.update(found)
            missing = (encoding for encoding, lookup in found.items() if lookup.run is None)
            contexts = dict.fromkeys(part.encoding for encoding in missing for part in encoding.context)
            unknown = tuple(each for each in contexts if each not in lookups)
        return lookups

    def encode_missing(
        self, wanted: Iterable[Encoding], lookups: Mapping[Encoding, Lookup], *, patience_s: float = PATIENCE_S
    ) -> Iterator[Encoded]:
        """Encode what `look_up` did not find, one forward pass after another, contexts first.

        Locks are held during a forward pass and not while the iterator waits to be asked for the next one. So threads
        and processes that need the same encodings share the work. The thread need not be the one that looked up.

        Args:
            wanted: What was given to `look_up`.
            lookups: What it returned.
            patience_s: How long to wait for another process that encodes the same; then it is encoded here, too.
        """
        wanted = tuple(wanted)
        held = {encoding: each.run for encoding, each in lookups.items() if each.run is not None}
        while missing := missing_encodings(wanted, held.__contains__):
            for batch in encoding_batches(self.model, missing):
                group = self._encode(batch, held, patience_s)
                held.update(group.runs)
                yield group
                if group.lookups:
                    break  # others are at work on the same: find out what is left to do

    def _encode(self, batch: Sequence[Chain], held: Mapping[Encoding, KVHandle], patience_s: float) -> Encoded:
        """Encode a batch, unless another thread or process has encoded any of it while this one waited."""
        encodings = [link for chain in batch for link in chain.links]
        with self.store.claim(self.key(encodings[0]), patience_s), self._lock:
            again = self._get_many(encodings)
            faults = [fault for each in again.values() for fault in each.faults]
            found = {each: lookup.run for each, lookup in again.items() if lookup.run is not None}
            if found:
                return Encoded(runs=found, lookups={each: again[each] for each in found}, faults=tuple(faults))
            runs = {
                each: stored(self.store, self.recipe(each), kv, faults.append)
                for each, kv in compute(self.model, batch, held)
            }
        return Encoded(runs=runs, lookups={}, faults=tuple(faults))

    def _get_many(self, encodings: Sequence[Encoding]) -> dict[Encoding, Lookup]:
        found = self.store.get_many([self.key(each) for each in encodings])
        return {each: found[self.key(each)] for each in encodings}
