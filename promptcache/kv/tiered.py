"""Several tiers as one store: memory above, shelves below, each of them as good as lost at any moment.

Comes in: recipes and KV. Goes out: the same KV from the fastest tier that has it. What is put goes to every tier at
once, so that eviction above never has to write; what is found below moves up. A tier that fails costs a request time
and never its answer: the next tier is asked, or nobody has it and it is encoded anew. What failed is told by the lookup
and logged once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch

from promptcache.diagnostics import TierUnavailable, Unpicklable
from promptcache.kv.attempts import Attempts
from promptcache.kv.codec import pack, unpack
from promptcache.kv.keys import Recipe
from promptcache.kv.memory import MemoryStore
from promptcache.kv.pace import Pace
from promptcache.kv.shelf import Resting, Shelf
from promptcache.kv.store import Lookup, Tier, checked_keys
from promptcache.kv.types import RunKV


class TieredStore(Unpicklable):
    """A `Store` over memory and any number of shelves.

    Attributes:
        memory: On the model's device; its budget limits what is linked from there.
        host: In the host's memory, for models on another device; None where there is no such tier.
        shelves: Fastest first.
    """

    _instead = "make one in each process, over the same folder or URL"

    def __init__(
        self,
        memory: MemoryStore,
        shelves: Sequence[Shelf] = (),
        *,
        host: MemoryStore | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Put tiers together.

        Args:
            pace: Load only where that is cheaper than encoding; None loads whatever is there, so that what a request
                does never depends on how fast anything was.
        """
        self.memory, self.host, self.shelves = memory, host, tuple(shelves)
        self._pace = pace
        self._num_tokens: dict[str, int] = {}
        self._notes: dict[str, Mapping[str, str]] = {}
        self._attempts = Attempts()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(map(str, (*self._memories(), *self.shelves)))}>"

    def get(self, key: str) -> Lookup:
        """Return what is kept under `key` in the fastest tier that has it; from there it moves up."""
        found = self.memory.get(key)
        if found.run is None:
            found = self._from_host(key) or self._from_shelves(key)
        untold = self._attempts.untold()
        return found._replace(faults=untold + found.faults) if untold else found

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> RunKV:
        """Keep KV in every tier that takes it, and return it as its codec leaves it, whether any of them did or not.

        Shelves that fail are told by the next lookup, or by `untold`.

        Raises:
            StoreError: The tensors have another shape than this store's.
        """
        run = self.memory.put(recipe, keys, values)
        if self.host is not None:
            self.host.offer(recipe, run.keys, run.values)
        if self.shelves:
            resting = replace(pack(recipe, run.keys, run.values), facts=self._notes.get(recipe.key, {}))
            self._attempts.tell_later(self._write(resting, self.shelves))
        return run

    def delete(self, key: str) -> bool:
        """Forget `key` in every tier.

        Raises:
            TierUnavailable: A shelf did not answer, and may still have it; all others have forgotten it.
        """
        memories = [tier.delete(key) for tier in self._memories()]
        gone, failed = any(memories), None
        for shelf in self.shelves:
            try:
                gone = shelf.delete(key) or gone
            except TierUnavailable as fault:
                failed = fault
        if failed is not None:
            raise failed
        return gone

    def keys(self) -> Iterator[str]:
        """Yield the keys that are in any tier now; a shelf that does not answer has none."""
        found: dict[str, None] = {}
        for tier in self._memories():
            found.update(dict.fromkeys(tier.keys()))
        for shelf in self.shelves:
            there, _ = self._attempts.make("read", shelf, partial(_all_keys, shelf))
            found.update(dict.fromkeys(there or ()))
        yield from found

    def lacking(self, keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return which of `keys` each shelf does not hold, by its name; shelves that hold all are left out."""
        wanted, found = frozenset(keys), {}
        for shelf in self.shelves:
            there, fault = self._attempts.make("read", shelf, partial(_all_keys, shelf))
            self._attempts.tell_later([] if fault is None else [fault])
            if lost := wanted.difference(there or ()):
                found[str(shelf)] = lost
        return found

    def nbytes(self) -> int:
        """Bytes in all tiers; what is in two of them counts twice."""
        return sum(self.tier_bytes().values())

    def tier_bytes(self) -> Mapping[Tier, int]:
        """Return the bytes of each tier; a shelf that does not answer has none."""
        sizes = {tier.tier: tier.nbytes() for tier in self._memories()}
        for shelf in self.shelves:
            nbytes, _ = self._attempts.make("read", shelf, shelf.nbytes)
            sizes[shelf.tier] = sizes.get(shelf.tier, 0) + (nbytes or 0)
        return sizes

    def reserve(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Announce keys to the tiers in memory."""
        for tier in self._memories():
            tier.reserve(sizes)
        self._num_tokens.update(sizes)

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """Say what to keep with encodings, by key, when they are written; it is for people, and enters no key."""
        for key, more in facts.items():
            self._notes[key] = {**self._notes.get(key, {}), **more}

    def forget(self, keys: Iterable[str]) -> None:
        """Take back what `reserve` and `note` said of keys that nobody will ask for again; encodings stay."""
        for key in keys:
            self._num_tokens.pop(key, None)
            self._notes.pop(key, None)

    def untold(self) -> tuple[str, ...]:
        """Return what went wrong while writing and no lookup has told yet; then it is told."""
        return self._attempts.untold()

    def claim(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """Be the only one, of all processes that share the fastest shelf, that makes `key`; as `Shelf.claim`."""
        return self.shelves[0].claim(key, timeout_s) if self.shelves else nullcontext(False)

    def pin(self, keys: Iterable[str]) -> None:
        """Keep these keys from eviction in every tier.

        Raises:
            TierUnavailable: A shelf did not answer.
        """
        chosen = checked_keys(keys)
        for tier in self._memories():
            tier.pin(chosen)
        for shelf in self.shelves:
            for key in chosen:
                shelf.pin(key)

    def unpin(self, keys: Iterable[str]) -> None:
        """Take back `pin`.

        Raises:
            TierUnavailable: A shelf did not answer.
        """
        chosen = checked_keys(keys)
        for tier in self._memories():
            tier.unpin(chosen)
        for shelf in self.shelves:
            for key in chosen:
                shelf.unpin(key)

    def _memories(self) -> tuple[MemoryStore, ...]:
        return (self.memory,) if self.host is None else (self.memory, self.host)

    def _from_host(self, key: str) -> Lookup | None:
        found = self.host.get(key).run if self.host is not None else None
        recipe = self.host.recipe(key) if self.host is not None else None
        if found is None or recipe is None:
            return None
        run = self.memory.offer(recipe, found.keys, found.values)
        if run is None:  # a copy: the request will hold it, not the host's place
            run = self.memory.pass_on(found.keys.clone(), found.values.clone())
        return Lookup(run, Tier.HOST, found.nbytes)

    def _from_shelves(self, key: str) -> Lookup:
        faults: list[str] = []
        for number, shelf in enumerate(self.shelves):
            if not self._is_worth_asking(shelf, key):
                continue
            resting, fault = self._attempts.make("read", shelf, partial(shelf.read, key, self.memory.shape))
            faults += [fault] if fault is not None else []
            if resting is not None:
                faults += self._write(resting, self.shelves[:number])
                return Lookup(self._moved_up(resting), shelf.tier, resting.nbytes, tuple(faults))
        return Lookup(None, faults=tuple(faults))

    def _moved_up(self, resting: Resting) -> RunKV:
        """Copy KV to where its neighbours are; without room, link it where it is, in its file if it can be."""
        keys, values = unpack(resting, self.memory.shape.device)
        if self.host is not None:
            self.host.offer(resting.recipe, keys, values)
        return self.memory.offer(resting.recipe, keys, values) or self.memory.pass_on(keys, values)

    def _is_worth_asking(self, shelf: Shelf, key: str) -> bool:
        num_tokens = self._num_tokens.get(key)
        if self._pace is None or num_tokens is None:
            return True
        return self._pace.is_worth_loading(shelf.tier, num_tokens, num_tokens * self.memory.shape.token_bytes)

    def _write(self, resting: Resting, shelves: Iterable[Shelf]) -> list[str]:
        attempts = (self._attempts.make("write", shelf, partial(shelf.write, resting)) for shelf in shelves)
        return [fault for _, fault in attempts if fault is not None]


def _all_keys(shelf: Shelf) -> tuple[str, ...]:
    return tuple(shelf.keys())
