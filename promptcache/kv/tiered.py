"""Several tiers as one store: memory, the host's memory, and blob tiers below them.

`put` writes to every tier at once, so that eviction never has to write. What is found in a slower tier is copied to the
faster ones. A tier that fails costs a request time and never its answer: the next tier is asked, or the encoding is
computed again. The lookup reports the fault, and the log has it once.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from promptcache.diagnostics import TEXT, CorruptEncoding, Kind, StoreError, TierUnavailable, Unpicklable, number
from promptcache.kv.codec import StoredEncoding, from_stored, to_stored
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.keys import Recipe
from promptcache.kv.memory.store import MemoryStore
from promptcache.kv.store import Faults, Lookup, Store, Tier, checked_keys
from promptcache.kv.types import KVHandle
from promptcache.locks import new_lock

_FACTS = Kind(
    "a mapping of keys to mappings of texts to texts",
    lambda value: (
        isinstance(value, Mapping)
        and all(map(TEXT.takes, value))
        and all(isinstance(each, Mapping) for each in value.values())
        and all(TEXT.takes(text) for each in value.values() for text in (*each, *each.values()))
    ),
)
_TIMEOUT = number(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Speeds that a user measured: a store with a `Pace` loads an encoding only where loading is faster than encoding.

    Attributes:
        encode_tokens_per_s: How many tokens the model encodes in a second.
        load_bytes_per_s: Throughput by tier, in bytes of KV as the model computes it; a tier without a figure always
            loads.
        latency_s: Seconds by tier until the first byte; 0 where a tier has no figure.

    Raises:
        StoreError: A throughput is not above 0, or a latency is below 0.
    """

    encode_tokens_per_s: float
    load_bytes_per_s: Mapping[Tier, float]
    latency_s: Mapping[Tier, float]

    def __post_init__(self) -> None:
        for name, figure in (
            ("encode_tokens_per_s", self.encode_tokens_per_s),
            *((f"load_bytes_per_s of {tier}", each) for tier, each in self.load_bytes_per_s.items()),
        ):
            if not _is_finite(figure) or figure <= 0:
                raise StoreError(f"{name} is a number above 0, not {figure!r}")
        for tier, figure in self.latency_s.items():
            if not _is_finite(figure) or figure < 0:
                raise StoreError(f"latency_s of {tier} is a number of seconds from 0 on, not {figure!r}")

    def is_worth_loading(self, tier: Tier, num_tokens: int, nbytes: int) -> bool:
        """Return whether a tier loads `nbytes` faster than the model encodes their `num_tokens` tokens."""
        if tier not in self.load_bytes_per_s:
            return True
        loading_s = self.latency_s.get(tier, 0.0) + nbytes / self.load_bytes_per_s[tier]
        return loading_s < num_tokens / self.encode_tokens_per_s


def _is_finite(figure: object) -> bool:
    """Return whether this is a finite number that a float can hold."""
    limit = sys.float_info.max
    return isinstance(figure, int | float) and not isinstance(figure, bool) and -limit <= figure <= limit


_log = logging.getLogger(__name__)

T = TypeVar("T")


class TierHealth:
    """Which tiers fail at present; any thread may call any method."""

    def __init__(self) -> None:
        self._failing: set[tuple[str, BlobTier]] = set()
        self._lock = new_lock()

    def attempt(self, what: str, tier: BlobTier, action: Callable[[], T], faults: Faults) -> T | None:
        """Run an operation on a tier and return its result; None and a sentence in `faults` if it fails.

        A bad file is logged, and it is set aside, so it is met once. A tier that does not answer is logged when it
        begins to fail at this, and again only after it has worked in between.

        Args:
            what: "read" or "write": a full disk can be read.
        """
        try:
            result = action()
        except CorruptEncoding as fault:
            _log.warning("%s", fault)
            faults.add(f"{tier.kind}: {fault}")
            return None
        except TierUnavailable as fault:
            with self._lock:
                is_new = (what, tier) not in self._failing
                self._failing.add((what, tier))
            if is_new:
                _log.warning("%s", fault)
            faults.add(f"{tier.kind}: {fault}")
            return None
        if self._failing:
            with self._lock:
                self._failing.discard((what, tier))
        return result


class TieredStore(Unpicklable, Store):
    """A `Store` over memory and any number of blob tiers.

    Attributes:
        memory: On the model's device; its budget limits what is linked from there.
        host: In the host's memory, for models on another device; None where there is no such tier.
        blob_tiers: Fastest first; they outlive the process.
    """

    _instead = "make one in each process; what processes share is a folder or URL, StoreConfig(folder=…)"

    def __init__(
        self,
        memory: MemoryStore,
        blob_tiers: Sequence[BlobTier] = (),
        *,
        host: MemoryStore | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Put tiers together.

        Args:
            pace: Load only where that is cheaper than encoding; None loads whatever is there, so that what a request
                does never depends on how fast anything was.
        """
        self.memory, self.host, self.blob_tiers = memory, host, tuple(blob_tiers)
        self._pace = pace
        self._num_tokens: dict[str, int] = {}
        self._notes: dict[str, Mapping[str, str]] = {}
        self._health = TierHealth()
        self._faults = Faults()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(str, (*self._memories(), *self.blob_tiers)))}>"

    def get(self, key: str) -> Lookup:
        """Return what is kept under `key` in the fastest tier that has it, and copy it to the faster ones."""
        TEXT.check("key", key, StoreError)
        return self.get_many((key,))[key]

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Return what `get` returns for each of `keys`; what is under a URL is fetched in parallel."""
        found = dict(self.memory.get_many(keys))
        missing = [key for key, lookup in found.items() if lookup.run is None]
        if missing and self.host is not None:
            found.update((key, lookup) for key in missing if (lookup := self._from_host(self.host, key)) is not None)
            missing = [key for key in missing if found[key].run is None]
        if missing and self.blob_tiers:
            found.update(self._from_tiers(missing))
        return found

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KVHandle:
        """Keep KV in every tier that takes it, and return it as its codec leaves it, whether any of them did or not.

        `faults` reports the tiers that fail.

        Raises:
            StoreError: The tensors have another shape than this store's.
        """
        run = self.memory.put(recipe, keys, values, persist=persist)
        if persist and self.host is not None:
            self.host.offer(recipe, run.keys, run.values)
        if persist and self.blob_tiers:
            stored = replace(to_stored(recipe, run.keys, run.values), facts=self._notes.get(recipe.key, {}))
            self._write(stored, self.blob_tiers, self._faults)
        return run

    def delete(self, key: str) -> bool:
        """Forget `key` in every tier.

        Raises:
            TierUnavailable: A blob tier did not answer, and may still have it; all others have forgotten it.
        """
        memories = [memory.delete(key) for memory in self._memories()]
        gone, failed = any(memories), None
        for tier in self.blob_tiers:
            try:
                gone = tier.delete(key) or gone
            except TierUnavailable as fault:
                failed = fault
        if failed is not None:
            raise failed
        return gone

    def keys(self) -> Iterator[str]:
        """Yield the keys that are in any tier now; a blob tier that does not answer has none."""
        found: dict[str, None] = {}
        for memory in self._memories():
            found.update(dict.fromkeys(memory.keys()))
        for tier in self.blob_tiers:
            found.update(dict.fromkeys(self._keys_in(tier, Faults())))
        yield from found

    def lacking(self, keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return which of `keys` each blob tier does not hold; one that does not answer holds none."""
        wanted = frozenset(checked_keys(keys))
        lost = {str(tier): wanted.difference(self._keys_in(tier, self._faults)) for tier in self.blob_tiers}
        return {name: keys for name, keys in lost.items() if keys}

    def nbytes(self) -> int:
        """Bytes in all tiers; what is in two of them counts twice."""
        return sum(self.tier_bytes().values())

    def tier_bytes(self) -> Mapping[Tier, int]:
        """Return the bytes of each tier; a blob tier that does not answer has none."""
        sizes = {memory.tier: memory.nbytes() for memory in self._memories()}
        for tier in self.blob_tiers:
            nbytes = self._health.attempt("read", tier, tier.nbytes, Faults())
            sizes[tier.kind] = sizes.get(tier.kind, 0) + (nbytes or 0)
        return sizes

    def reserve(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Announce keys to the tiers in memory."""
        for memory in self._memories():
            memory.reserve(sizes)
        self._num_tokens.update(sizes)

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """Say what to write beside encodings, by key, for people to read; later notes add to earlier ones."""
        _FACTS.check("facts", facts, StoreError)
        for key, more in facts.items():
            self._notes[key] = {**self._notes.get(key, {}), **more}

    def forget(self, keys: Iterable[str]) -> None:
        """Free the memory of keys that are not needed any more, and their notes; blob tiers keep them."""
        for key in checked_keys(keys):
            self._num_tokens.pop(key, None)
            self._notes.pop(key, None)
            for memory in self._memories():
                memory.delete(key)

    def faults(self) -> tuple[str, ...]:
        """Return what went wrong in `put` and `lacking` since the last call."""
        return self._faults.take()

    def claim(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """Be the only one, of all processes that share the fastest blob tier, that makes `key`."""
        TEXT.check("key", key, StoreError)
        _TIMEOUT.check("timeout_s", timeout_s, StoreError)
        return self.blob_tiers[0].claim(key, timeout_s) if self.blob_tiers else nullcontext(False)

    def pin(self, keys: Iterable[str]) -> None:
        """Keep these keys from eviction in every tier.

        Raises:
            TierUnavailable: A blob tier did not answer.
        """
        chosen = checked_keys(keys)
        for memory in self._memories():
            memory.pin(chosen)
        for tier in self.blob_tiers:
            for key in chosen:
                tier.pin(key)

    def unpin(self, keys: Iterable[str]) -> None:
        """Take back `pin`.

        Raises:
            TierUnavailable: A blob tier did not answer.
        """
        chosen = checked_keys(keys)
        for memory in self._memories():
            memory.unpin(chosen)
        for tier in self.blob_tiers:
            for key in chosen:
                tier.unpin(key)

    def _memories(self) -> tuple[MemoryStore, ...]:
        return (self.memory,) if self.host is None else (self.memory, self.host)

    def _from_host(self, host: MemoryStore, key: str) -> Lookup | None:
        found, recipe = host.get(key).run, host.recipe(key)
        if found is None or recipe is None:
            return None
        run = self.memory.offer(recipe, found.keys, found.values)
        if run is None:  # a copy: the request will hold it, not the host's place
            run = self.memory.unmanaged(found.keys.clone(), found.values.clone())
        return Lookup(run, Tier.HOST, found.nbytes)

    def _from_tiers(self, keys: Sequence[str]) -> Mapping[str, Lookup]:
        faults = {key: Faults() for key in keys}
        found: dict[str, Lookup] = {}
        for rank, tier in enumerate(self.blob_tiers):
            asked = [key for key in keys if key not in found and self._is_worth_asking(tier, key)]
            for key, stored in self._read(tier, asked, faults):
                if stored is not None:
                    self._write(stored, self.blob_tiers[:rank], faults[key])
                    found[key] = Lookup(self._moved_up(stored), tier.kind, stored.nbytes, faults[key].all())
        return {key: found.get(key) or Lookup(None, faults=faults[key].all()) for key in keys}

    def _read(
        self, tier: BlobTier, keys: Sequence[str], faults: Mapping[str, Faults]
    ) -> Iterator[tuple[str, StoredEncoding | None]]:
        def read(key: str) -> tuple[str, StoredEncoding | None]:
            return key, self._health.attempt("read", tier, lambda: tier.read(key, self.memory.shape), faults[key])

        num_threads = min(tier.max_parallel_reads, len(keys))
        return _mapped(read, keys, num_threads) if num_threads > 1 else map(read, keys)

    def _moved_up(self, stored: StoredEncoding) -> KVHandle:
        """Copy KV to where its neighbours are; without room, link it where it is, in its file if it can be."""
        keys, values = from_stored(stored, self.memory.shape.device)
        if self.host is not None:
            self.host.offer(stored.recipe, keys, values)
        return self.memory.offer(stored.recipe, keys, values) or self.memory.unmanaged(keys, values)

    def _is_worth_asking(self, tier: BlobTier, key: str) -> bool:
        num_tokens = self._num_tokens.get(key)
        if self._pace is None or num_tokens is None:
            return True
        return self._pace.is_worth_loading(tier.kind, num_tokens, num_tokens * self.memory.shape.token_bytes)

    def _write(self, stored: StoredEncoding, tiers: Iterable[BlobTier], faults: Faults) -> None:
        for tier in tiers:
            self._health.attempt("write", tier, lambda tier=tier: tier.write(stored), faults)  # type: ignore[misc]

    def _keys_in(self, tier: BlobTier, faults: Faults) -> tuple[str, ...]:
        return self._health.attempt("read", tier, lambda: tuple(tier.keys()), faults) or ()


def _mapped(
    function: Callable[[str], tuple[str, StoredEncoding | None]], keys: Sequence[str], num_threads: int
) -> Iterator[tuple[str, StoredEncoding | None]]:
    """Yield the results of a function in order; threads are at most twice their number ahead, to bound memory."""
    with ThreadPoolExecutor(num_threads) as pool:
        running: deque[Future[tuple[str, StoredEncoding | None]]] = deque()
        for key in keys:
            running.append(pool.submit(function, key))
            if len(running) > 2 * num_threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
