"""Several tiers as one store: memory, host memory, and blob tiers.

`put` writes to every tier at once, so eviction never has to write. An encoding found in a slower tier is copied to the
faster ones. If a tier fails, the next one is tried, or the encoding is computed again: the request takes longer, and
its answer is the same.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable, Unpicklable
from promptcache.kv.codec import StoredEncoding, from_stored, to_stored
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.format import pack, unpack
from promptcache.kv.keys import KEY, Recipe
from promptcache.kv.memory_store import MemoryStore
from promptcache.kv.store import MAX_NOTES, FaultLog, Lookup, OnWait, Store, Tier, checked_keys, go_on
from promptcache.kv.types import KV
from promptcache.locks import new_lock

_MAX_CLAIMS = 64  # at once; each has an open file
_WAIT_S = 0.5  # between two calls of `on_wait`
_log = logging.getLogger(__name__)

_A = TypeVar("_A")
_T = TypeVar("_T")


class TierHealth:
    """Set of tiers that fail at present. It decides which faults are logged. Thread-safe.

    Each tier decides by itself how long it is not used after a timeout.
    """

    def __init__(self) -> None:
        self._failing: dict[tuple[str, str], str] = {}  # the reason, by operation and tier
        self._lock = new_lock()

    def attempt(self, what: str, tier: BlobTier, action: Callable[[], _T], faults: FaultLog) -> _T | None:
        """Run an operation on a tier and return its result; on a fault, add it to `faults` and return None.

        Every corrupt file is logged. An unavailable tier is logged once for each reason, and again only after it has
        worked in between. Tiers of callers raise errors of their own.

        Args:
            what: "read", "write", "lock" or "unlock". A full disk can still be read.
            tier: Tier of the operation.
            action: The operation.
            faults: Faults of the request.
        """
        try:
            result = action()
        except CorruptEncoding as fault:
            _log.warning("%s", fault)
            faults.add(f"{tier.kind}: {fault}")
            return None
        except TierUnavailable as fault:
            unavailable = fault
        except Exception as error:  # noqa: BLE001 - a fault of a store costs no answer
            why = str(error) or type(error).__name__
            unavailable = TierUnavailable(f"{tier}: cannot {what}: {why}", why)
        else:
            if self._failing:
                with self._lock:
                    self._failing.pop((what, str(tier)), None)
            return result
        self.log(what, tier, unavailable)
        faults.add(f"{tier.kind}: {unavailable}")
        return None

    def log(self, what: str, tier: BlobTier, fault: TierUnavailable) -> None:
        """Log a fault of a tier, unless another operation of it fails for the same reason at present."""
        with self._lock:
            known = {reason for (_, failing), reason in self._failing.items() if failing == str(tier)}
            self._failing[what, str(tier)] = fault.reason
        if fault.reason not in known:
            _log.warning("%s", fault)


class TieredStore(Unpicklable, Store):
    """Store over memory and any number of blob tiers.

    Attributes:
        host: Store in host memory, for models on another device, or None.
        blob_tiers: Persistent tiers, fastest first.
    """

    _instead = "make one in each process; what processes share is a folder or URL, StoreConfig(folder=…)"

    def __init__(
        self,
        memory: MemoryStore,
        blob_tiers: Sequence[BlobTier] = (),
        *,
        host: MemoryStore | None = None,
    ) -> None:
        """Combine tiers.

        Args:
            memory: Store on the model's device.
            blob_tiers: Persistent tiers, fastest first.
            host: Store in host memory.
        """
        self._memory, self.host, self.blob_tiers = memory, host, tuple(blob_tiers)
        self._notes: OrderedDict[str, Mapping[str, str]] = OrderedDict()  # by last call
        self._health = TierHealth()
        self._faults = FaultLog()
        for tier in self.blob_tiers:
            if tier.opening_fault is not None:
                self._health.log("read", tier, tier.opening_fault)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(str, (*self._memories, *self.blob_tiers)))}>"

    @property
    def memory(self) -> MemoryStore:
        """Store on the model's device. Requests link KV from here."""
        return self._memory

    def get(self, key: str) -> Lookup:
        """Look up `key`, fastest tier first, and copy what is found to the faster tiers."""
        KEY.check("key", key, StoreError)
        return self.get_many((key,))[key]

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Look up several keys. Encodings under a URL are fetched in parallel."""
        found = dict(self.memory.get_many(keys))
        missing = [key for key, lookup in found.items() if lookup.handle is None]
        if missing and self.host is not None:
            found.update((key, lookup) for key in missing if (lookup := self._from_host(self.host, key)) is not None)
            missing = [key for key in missing if found[key].handle is None]
        if missing and self.blob_tiers:
            found.update(self._from_tiers(missing))
        return found

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KV:
        """Store KV in every tier that has room, and return it as its codec leaves it.

        `faults` reports the tiers that fail.

        Raises:
            StoreError: The tensors do not have the shape of this store.
        """
        handle = self.memory.put(recipe, keys, values, persist=persist)
        if persist and self.host is not None:
            self.host.offer(recipe, handle.keys, handle.values)
        if persist and self.blob_tiers:
            stored = replace(to_stored(recipe, handle.keys, handle.values), facts=self._notes.get(recipe.key, {}))
            self._write(stored, self.blob_tiers, self._faults)
        return handle

    def probe(self) -> None:
        """Check that every blob tier can be written now.

        Raises:
            TierUnavailable: One cannot.
        """
        for tier in self.blob_tiers:
            tier.probe()

    def delete(self, key: str) -> None:
        """Delete `key` in every tier.

        Raises:
            TierUnavailable: A blob tier did not answer and may still hold the key. The other tiers have deleted it.
        """
        for memory in self._memories:
            memory.delete(key)
        failed = None
        for tier in self.blob_tiers:
            try:
                tier.delete(key)
            except TierUnavailable as fault:
                failed = fault
        if failed is not None:
            raise failed

    def keys(self) -> Iterator[str]:
        """Yield the keys that are stored in any tier now, except in blob tiers that do not answer."""
        found: dict[str, None] = {}
        for memory in self._memories:
            found.update(dict.fromkeys(memory.keys()))
        for tier in self.blob_tiers:
            found.update(dict.fromkeys(self._keys_in(tier, FaultLog())))
        yield from found

    def lacking(self, keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return the `keys` that each blob tier does not hold. A tier that does not answer counts as empty."""
        wanted = frozenset(checked_keys(keys))
        lacking = {str(tier): wanted.difference(self._keys_in(tier, self._faults)) for tier in self.blob_tiers}
        return {name: keys for name, keys in lacking.items() if keys}

    def nbytes(self) -> int:
        """Return the bytes in all tiers. KV in two tiers counts twice; a tier that does not answer counts as empty."""
        return sum(memory.nbytes() for memory in self._memories) + sum(map(self._bytes_in, self.blob_tiers))

    def local_bytes(self) -> Mapping[Tier, int]:
        """Return the bytes in each tier but those under a URL. A tier that does not answer counts as empty."""
        found = dict(zip((Tier.MEMORY, Tier.HOST), (memory.nbytes() for memory in self._memories), strict=False))
        for tier in self.blob_tiers:
            if tier.kind is not Tier.REMOTE:
                found[tier.kind] = found.get(tier.kind, 0) + self._bytes_in(tier)
        return found

    def absent(self, keys: Iterable[str]) -> frozenset[str]:
        """Return those `keys` whose KV is in no memory."""
        absent = self.memory.absent(keys)
        return absent if self.host is None else self.host.absent(absent)

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """Set facts to write beside encodings, by key. Later facts are merged with earlier ones."""
        for memory in self._memories:
            memory.note(facts)
        if not self.blob_tiers:
            return
        for key, more in facts.items():
            self._notes[key] = {**self._notes.pop(key, {}), **more}
            while len(self._notes) > MAX_NOTES:
                self._notes.popitem(last=False)

    def faults(self) -> tuple[str, ...]:
        """Return the faults in `put` and `lacking` since the last call."""
        return self._faults.take()

    @contextmanager
    def claim(self, keys: Sequence[str], timeout_s: float, on_wait: OnWait = go_on) -> Iterator[frozenset[str]]:
        """Return a context in which no other process with the same folder computes the keys that it yields.

        At most 64 of the keys are locked. A URL has no locks, so two machines may compute one key.
        """
        tiers = [tier for tier in self.blob_tiers if tier.has_locks]
        deadline = time.monotonic() + timeout_s
        with ExitStack() as stack:
            claimed = [key for key in keys[:_MAX_CLAIMS] if self._lock(stack, tiers, key, 0.0)] if tiers else keys
            while keys and not claimed and (left_s := deadline - time.monotonic()) > 0:
                if self._lock(stack, tiers, keys[0], min(left_s, _WAIT_S)):
                    claimed = keys[:1]
                else:
                    on_wait()
            yield frozenset(claimed)

    def _lock(self, stack: ExitStack, tiers: Iterable[BlobTier], key: str, timeout_s: float) -> bool:
        """Lock a key in every tier for as long as `stack`; return False if another process holds it."""
        for tier in tiers:
            tried = self._health.attempt("lock", tier, partial(_try_lock, tier, key, timeout_s), self._faults)
            if tried is None:  # a fault: go on without a lock
                continue
            (unlock,) = tried
            if unlock is None:
                return False
            stack.callback(self._health.attempt, "unlock", tier, unlock, self._faults)
        return True

    @property
    def _memories(self) -> tuple[MemoryStore, ...]:
        return (self.memory,) if self.host is None else (self.memory, self.host)

    def _from_host(self, host: MemoryStore, key: str) -> Lookup | None:
        found, recipe = host.get(key).handle, host.recipe(key)
        if found is None or recipe is None:
            return None
        device = self.memory.shape.device
        handle = self.memory.offer(recipe, found.keys, found.values)
        if handle is None:
            handle = KV(keys=found.keys.to(device), values=found.values.to(device))
        return Lookup(handle, Tier.HOST, found.nbytes)

    def _from_tiers(self, keys: Sequence[str]) -> Mapping[str, Lookup]:
        faults = {key: FaultLog() for key in keys}
        found: dict[str, Lookup] = {}
        for rank, tier in enumerate(self.blob_tiers):
            wanted = [key for key in keys if key not in found]
            for key, stored in self._read(tier, wanted, faults):
                if stored is not None:
                    self._write(stored, self.blob_tiers[:rank], faults[key])
                    found[key] = Lookup(self._promote(stored), tier.kind, stored.nbytes, faults[key].all())
        return {key: found.get(key) or Lookup(None, faults=faults[key].all()) for key in keys}

    def _read(
        self, tier: BlobTier, keys: Sequence[str], faults: Mapping[str, FaultLog]
    ) -> Iterator[tuple[str, StoredEncoding | None]]:
        def read(key: str) -> tuple[str, StoredEncoding | None]:
            return key, self._health.attempt("read", tier, partial(self._load, tier, key), faults[key])

        return _map(read, keys, tier.max_parallel_reads)

    def _load(self, tier: BlobTier, key: str) -> StoredEncoding | None:
        """Read and verify a file. A damaged one is deleted."""
        try:
            data = tier.read(key)
            return None if data is None else unpack(data, f"{tier}/{key}", key, self.memory.shape)
        except CorruptEncoding:
            with suppress(Exception):  # a read-only folder; the damage is reported in any case
                tier.delete(key)
            raise

    def _promote(self, stored: StoredEncoding) -> KV:
        """Copy KV to the memories. Without room on the device, link it where it is, in its mapped file if possible."""
        keys, values = from_stored(stored, self.memory.shape.device)
        if self.host is not None:
            self.host.offer(stored.recipe, keys, values)
        return self.memory.offer(stored.recipe, keys, values) or KV(keys=keys, values=values)

    def _write(self, stored: StoredEncoding, tiers: Iterable[BlobTier], faults: FaultLog) -> None:
        chosen = tuple(tiers)
        data = pack(stored) if chosen else b""
        for tier in chosen:
            self._health.attempt("write", tier, partial(tier.write, stored.recipe.key, data), faults)

    def _bytes_in(self, tier: BlobTier) -> int:
        return self._health.attempt("read", tier, tier.nbytes, FaultLog()) or 0

    def _keys_in(self, tier: BlobTier, faults: FaultLog) -> tuple[str, ...]:
        found = self._health.attempt("read", tier, lambda: tuple(tier.keys()), faults) or ()
        return tuple(key for key in found if KEY.takes(key))


def _try_lock(tier: BlobTier, key: str, timeout_s: float) -> tuple[Callable[[], object] | None]:
    return (tier.try_lock(key, timeout_s),)


def _map(function: Callable[[_A], _T], values: Sequence[_A], max_threads: int) -> Iterator[_T]:
    """Yield the results of a function in order. At most `max_threads` results wait, which bounds memory."""
    if max_threads == 1 or len(values) == 1:
        yield from map(function, values)
        return
    with ThreadPoolExecutor(max_threads) as pool:
        for start in range(0, len(values), max_threads):
            yield from pool.map(function, values[start : start + max_threads])
