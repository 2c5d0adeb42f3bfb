"""The store: KV of encodings by key, in memory, in host memory, and in blob tiers.

`put` writes to every tier at once, so eviction never has to write. An encoding found in a slower tier is copied to the
faster ones. A fault in a tier never costs an answer: the next tier is tried, or the encoding is computed again.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import ref

import torch

from promptcache.diagnostics import BYTES, CorruptEncoding, ModelChanged, StoreError, TierUnavailable, Unpicklable
from promptcache.kv.codec import StoredEncoding, apply_codec, from_stored, to_stored
from promptcache.kv.eviction import cost_at
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.format import pack, unpack
from promptcache.kv.keys import KEY, Recipe
from promptcache.kv.memory import HostMemory, KVMemory
from promptcache.kv.types import KV, KVShape, Tier
from promptcache.locks import new_lock

MAX_NOTES = 1 << 16
"""Maximum number of keys with facts, about 300 bytes each. Those that were named longest ago are forgotten."""

_FIRST = "the first model of this memory"
_MAX_CLAIMS = 64  # at once; each has an open file
_WAIT_S = 0.5  # between two calls of `on_wait`
_MAX_FAULTS = 1000  # that wait for `Store.faults`
_log = logging.getLogger(__name__)

_A = TypeVar("_A")
_T = TypeVar("_T")


class Lookup(NamedTuple):
    """Result of looking up one key.

    Attributes:
        kv: The KV, ready to be linked, or None for a cache miss. Callers may keep it and must not change it.
        tier: Where the KV was found.
        moved_bytes: Bytes copied between tiers for this lookup.
        faults: Faults in this lookup, one sentence each, such as a tier that did not answer.
    """

    kv: KV | None
    tier: Tier = Tier.MEMORY
    moved_bytes: int = 0
    faults: tuple[str, ...] = ()


OnWait: TypeAlias = Callable[[], None]
"""Called at least once a second while a claim waits. If it raises, the wait ends."""


def go_on() -> None:
    """Keep waiting."""


class Fingerprinted(Protocol):
    """A model."""

    @property
    def fingerprint(self) -> str:
        """Digest of the model. It reads all weights, and raises `ModelChanged` if they were changed."""


class Store(Unpicklable):
    """Encodings by key in all tiers. Thread-safe.

    Attributes:
        memory: The memory on the model's device. Requests link KV from here. History and joined copies are kept there,
            too.
        host: Host memory, for models on another device, or None. It has KV as its codec stores it.
        blob_tiers: Persistent tiers, fastest first.
    """

    _instead = "make one in each process; what processes share is a folder or URL, StoreConfig(folder=…)"

    def __init__(
        self,
        shape: KVShape,
        blob_tiers: Sequence[BlobTier] = (),
        *,
        budget_bytes: int | None = None,
        host_bytes: int | None = None,
    ) -> None:
        """Create a store with nothing in memory.

        Args:
            shape: Shape of the KV, with the device of the memory.
            blob_tiers: Persistent tiers, fastest first.
            budget_bytes: Limit of the memory. None: a quarter of the memory of the device.
            host_bytes: Limit of a tier in host memory. None: no such tier.
        """
        self.memory, self.blob_tiers = KVMemory(shape, budget_bytes=budget_bytes), tuple(blob_tiers)
        (BYTES | None).check("host_bytes", host_bytes, StoreError)
        self.host = None if host_bytes is None else HostMemory(host_bytes)
        memories = (self.memory, self.host)
        self._memories: tuple[KVMemory | HostMemory, ...] = tuple(each for each in memories if each is not None)
        self._first_model: ref[Fingerprinted] | None = None
        self._notes: OrderedDict[str, Mapping[str, str]] = OrderedDict()  # by last call
        self._failing: dict[tuple[str, str], str] = {}  # the reason, by operation and tier
        self._faults = deque[str](maxlen=_MAX_FAULTS)
        self._lock = new_lock()
        for tier in self.blob_tiers:
            if tier.opening_fault is not None:
                self._log_fault("read", tier, tier.opening_fault)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(str, (*self._memories, *self.blob_tiers)))}>"

    def name(self, model: Fingerprinted) -> str:
        """Return what tells the KV of a model from others here; models with one name have one fingerprint.

        It is the fingerprint if KV leaves this process. Most memories have KV of one model, which needs none: the
        fingerprint of the first model is compared only when another one comes.

        Args:
            model: As it was when it was first named. It is not kept alive.

        Raises:
            ModelChanged: The fingerprint is needed, and the model was changed.
        """
        if self.blob_tiers:
            return model.fingerprint
        with self._lock:
            if self._first_model is None:
                self._first_model = ref(model)
            first = self._first_model()
        if first is model:
            return _FIRST
        own = model.fingerprint
        try:
            return _FIRST if first is not None and first.fingerprint == own else own
        except ModelChanged:  # the first one cannot be compared now, so KV is not shared
            return own

    def get(self, key: str) -> Lookup:
        """Look up `key`, fastest tier first, and copy what is found to the faster tiers."""
        return self.get_many((key,))[key]

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Look up several keys. Encodings under a URL are fetched in parallel.

        Raises:
            StoreError: One of them is not a key.
        """
        wanted = tuple(keys)
        for key in wanted:
            KEY.check("key", key, StoreError)
        found = {key: Lookup(self.memory.find(key)) for key in wanted}
        missing = [key for key, lookup in found.items() if lookup.kv is None]
        if missing and self.host is not None:
            for key in missing:
                if (stored := self.host.find(key)) is not None:
                    found[key] = Lookup(self._decoded(stored), Tier.HOST, stored.nbytes)
            missing = [key for key in missing if found[key].kv is None]
        if missing and self.blob_tiers:
            found.update(self._from_tiers(missing))
        return found

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KV:
        """Store KV in every tier that has room, and return it as its codec leaves it. `faults` has tiers that fail.

        KV in memory stays as it is. If memory has no room, the result refers to the KV itself.

        Args:
            recipe: Identity of the encoding. `recipe.key` is the key for `get`.
            keys: `[L, Hkv, T, D]` in position order. The store copies what it keeps, and changes nothing.
            values: Same shape as `keys`.
        """
        kv = self.memory.find(recipe.key)
        if kv is None:
            kv = self._keep(recipe, *apply_codec(recipe, keys, values))
        if self.blob_tiers:
            facts = self._notes.get(recipe.key, {})
            stored = replace(to_stored(recipe, kv.keys, kv.values), facts=facts)
            self._write(stored, self.blob_tiers, self._faults)
        return kv

    def probe(self) -> None:
        """Check that every blob tier can be written now; nothing is left behind.

        Raises:
            TierUnavailable: One cannot.
        """
        for tier in self.blob_tiers:
            try:
                tier.probe()
            except TierUnavailable as fault:
                message = f"{fault}; make it writable, or name another place"
                raise TierUnavailable(message, fault.reason) from fault

    def delete(self, key: str) -> None:
        """Delete `key` in every tier. Requests that use its KV keep it.

        Raises:
            TierUnavailable: A blob tier did not answer and may still hold the key. The other tiers have deleted it.
        """
        KEY.check("key", key, StoreError)
        for memory in self._memories:
            memory.drop(key)
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
        found = dict.fromkeys(recipe.key for memory in self._memories for recipe in memory.recipes())
        for tier in self.blob_tiers:
            found.update(dict.fromkeys(self._keys_in(tier, [])))
        yield from found

    def lacking(self, keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return the `keys` that each blob tier does not hold, by the name of the tier.

        Tiers that hold all of them are left out. A tier that does not answer counts as empty.
        """
        wanted = frozenset(keys)
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
        """Return those `keys` whose KV is in no memory. A service fetches it in another thread."""
        return frozenset(key for key in keys if not any(key in memory for memory in self._memories))

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """Set facts of encodings, by key, which are written beside them. Later facts are merged with earlier ones.

        The cost of an encoding that is kept from now on is multiplied by its "priority". Facts with a "module" and no
        priority take that of an earlier version of the schema away.
        """
        for key, more in facts.items():
            known = self._notes.pop(key, {})
            if "module" in more:
                known = {name: text for name, text in known.items() if name != "priority"}
            self._notes[key] = {**known, **more}
            while len(self._notes) > MAX_NOTES:
                self._notes.popitem(last=False)

    def faults(self) -> tuple[str, ...]:
        """Return the faults in `put`, `lacking` and `claim` since the last call, one sentence each."""
        with self._lock:
            return tuple(dict.fromkeys(self._faults.popleft() for _ in range(len(self._faults))))

    @contextmanager
    def claim(
        self, chains: Sequence[Sequence[str]], timeout_s: float, on_wait: OnWait = go_on
    ) -> Iterator[frozenset[str]]:
        """Return a context in which no other process with the same folder computes the keys that it yields.

        Entering it locks at most 64 keys: of each chain, those before the first one that another process computes now.
        If there are none, it waits for the first key, at most `timeout_s`, and calls `on_wait` meanwhile. Look the keys
        up again afterwards, because another process may have stored them. Claims only save work; answers are correct
        without them. A URL has no locks, so two machines may compute one key.
        """
        tiers = [tier for tier in self.blob_tiers if tier.has_locks]
        deadline = time.monotonic() + timeout_s
        with ExitStack() as stack:
            claimed = set[str]()
            for keys in chains:
                free = keys[: _MAX_CLAIMS - len(claimed)] if tiers else keys
                claimed.update(takewhile(lambda key: self._locked(stack, tiers, key, 0.0), free))
            while chains and not claimed and (left_s := deadline - time.monotonic()) > 0:
                if self._locked(stack, tiers, chains[0][0], min(left_s, _WAIT_S)):
                    claimed = {chains[0][0]}
                else:
                    on_wait()
            yield frozenset(claimed)

    def _locked(self, stack: ExitStack, tiers: Iterable[BlobTier], key: str, timeout_s: float) -> bool:
        """Lock a key in every tier for as long as `stack`; return False if another process holds it."""
        for tier in tiers:

            def lock(tier: BlobTier = tier) -> list[Callable[[], object] | None]:
                return [tier.try_lock(key, timeout_s)]

            tried = self._attempt("lock", tier, lock, self._faults)
            if tried is None:  # a fault: go on without a lock
                continue
            (unlock,) = tried
            if unlock is None:
                return False
            stack.callback(self._attempt, "unlock", tier, unlock, self._faults)
        return True

    def _keep(
        self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, stored: StoredEncoding | None = None
    ) -> KV:
        """Copy KV to the memories; without room, link it where it is, in its mapped file if possible.

        Args:
            stored: The same KV as its codec stores it, if a tier had it.
        """
        device = self.memory.shape.device
        priority = int(self._notes.get(recipe.key, {}).get("priority", 1))
        cost = cost_at(recipe.num_tokens, recipe.last_position) * priority
        if self.host is not None and recipe.key not in self.host:
            self.host.offer(stored or to_stored(recipe, keys, values), cost)
        kept = self.memory.offer(recipe, keys, values, cost)
        return kept or KV(keys=keys.to(device), values=values.to(device))

    def _decoded(self, stored: StoredEncoding) -> KV:
        return self._keep(stored.recipe, *from_stored(stored, self.memory.shape.device), stored)

    def _from_tiers(self, keys: Sequence[str]) -> Mapping[str, Lookup]:
        faults: dict[str, list[str]] = {key: [] for key in keys}
        found: dict[str, Lookup] = {}
        for rank, tier in enumerate(self.blob_tiers):

            def read(key: str, tier: BlobTier = tier) -> tuple[str, StoredEncoding | None]:
                return key, self._attempt("read", tier, partial(self._load, tier, key), faults[key])

            wanted = [key for key in keys if key not in found]
            for key, stored in _map(read, wanted, tier.max_parallel_reads):
                if stored is not None:
                    self._write(stored, self.blob_tiers[:rank], faults[key])
                    found[key] = Lookup(self._decoded(stored), tier.kind, stored.nbytes, tuple(faults[key]))
        return {key: found.get(key) or Lookup(None, faults=tuple(faults[key])) for key in keys}

    def _load(self, tier: BlobTier, key: str) -> StoredEncoding | None:
        """Read and verify a file. A damaged one is deleted."""
        try:
            data = tier.read(key)
            return None if data is None else unpack(data, f"{tier}/{key}", key, self.memory.shape)
        except CorruptEncoding:
            with suppress(Exception):  # a read-only folder; the damage is reported in any case
                tier.delete(key)
            raise

    def _write(self, stored: StoredEncoding, tiers: Sequence[BlobTier], faults: list[str] | deque[str]) -> None:
        data = pack(stored) if tiers else b""
        for tier in tiers:
            self._attempt("write", tier, partial(tier.write, stored.recipe.key, data), faults)

    def _bytes_in(self, tier: BlobTier) -> int:
        return self._attempt("read", tier, tier.nbytes, []) or 0

    def _keys_in(self, tier: BlobTier, faults: list[str] | deque[str]) -> tuple[str, ...]:
        found = self._attempt("read", tier, lambda: tuple(tier.keys()), faults) or ()
        return tuple(key for key in found if KEY.takes(key))

    def _attempt(
        self, what: str, tier: BlobTier, action: Callable[[], _T], faults: list[str] | deque[str]
    ) -> _T | None:
        """Run an operation on a tier and return its result; on a fault, add it to `faults` and return None.

        Every corrupt file is logged. Tiers of callers raise errors of their own.

        Args:
            what: "read", "write", "lock" or "unlock". A full disk can still be read.
        """
        try:
            result = action()
        except CorruptEncoding as fault:
            _log.warning("%s", fault)
            faults.append(f"{tier.kind}: {fault}")
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
        self._log_fault(what, tier, unavailable)
        faults.append(f"{tier.kind}: {unavailable}")
        return None

    def _log_fault(self, what: str, tier: BlobTier, fault: TierUnavailable) -> None:
        """Log a tier that fails, once for each reason, and again only after it has worked in between."""
        with self._lock:
            known = {reason for (_, failing), reason in self._failing.items() if failing == str(tier)}
            self._failing[what, str(tier)] = fault.reason
        if fault.reason not in known:
            _log.warning("%s", fault)


def _map(function: Callable[[_A], _T], values: Sequence[_A], max_threads: int) -> Iterator[_T]:
    """Yield the results of a function in order. At most `max_threads` results wait, which bounds memory."""
    if max_threads == 1 or len(values) == 1:
        yield from map(function, values)
        return
    with ThreadPoolExecutor(max_threads) as pool:
        for start in range(0, len(values), max_threads):
            yield from pool.map(function, values[start : start + max_threads])
