"""Encodes modules behind each other before a request has them in this order, in idle time.

Modules with `sees="previous"` are encoded behind the module before them in a prompt. So the first request with a new
pair waits for its encoding. Which pairs will come is not known, but which modules requests select is.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from promptcache.diagnostics import Short
from promptcache.kv import memory_tier
from promptcache.language import Sees
from promptcache.layout import Encoding, Plan
from promptcache.locks import new_lock
from promptcache.runtime.catalog import Catalog
from promptcache.runtime.encode import missing_encodings
from promptcache.runtime.executor import Executor
from promptcache.runtime.hf.linking import StopCheck
from promptcache.runtime.idle import IdleThread, Interrupted
from promptcache.runtime.made_encodings import MAX_PAIRS
from promptcache.runtime.promoter import Promoter

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PairsAhead(Short):
    """Figures of the pairs of modules that were brought into memory ahead of requests so far.

    Attributes:
        num_encoded: Pairs that were encoded, or read from a folder or URL.
        num_waiting: Pairs that wait for idle time.
        nbytes: Their KV.
    """

    num_encoded: int = 0
    num_waiting: int = 0
    nbytes: int = 0


class _Names(NamedTuple):
    """A pair that waits: the module `path` of a schema behind the module `previous`."""

    schema: str
    previous: str
    path: str


class PairEncoder:
    """Encodes all pairs of the modules that requests have selected. Thread-safe.

    Pairs that are nearest to each other among these modules come first: if all modules are selected equally often, they
    are neighbours most often. Answers do not depend on it.
    """

    def __init__(self, executor: Executor, catalog: Catalog, limit_bytes: int) -> None:
        """Create an encoder that knows no modules.

        Args:
            executor: The model, and a store. KV that is encoded is written to all tiers, like that of a request.
            limit_bytes: Limit of the KV that is encoded. With a memory budget, nothing is encoded while more than half
                of it is used.
        """
        self.limit_bytes = limit_bytes
        self._executor, self._catalog = executor, catalog
        self._selected: dict[str, set[str]] = {}  # modules that requests have selected, by schema
        self._unpaired: dict[str, set[str]] = {}  # those among them whose pairs were not listed yet
        self._waiting: deque[_Names] = deque()
        self._sizes: dict[Encoding, int] = {}  # bytes of what was encoded
        self._num_encoded = 0
        self._model_state = executor.follow()
        self._lock = new_lock()
        self._working = new_lock()
        self._thread = IdleThread(self.work, executor.activity)
        catalog.on_drop.append(self.renew)

    @property
    def figures(self) -> PairsAhead:
        """Figures so far."""
        sizes = tuple(self._sizes.values())
        return PairsAhead(num_encoded=self._num_encoded, num_waiting=len(self._waiting), nbytes=sum(sizes))

    def note(self, plan: Plan) -> None:
        """Note the modules that a request selects. It takes microseconds."""
        selection = plan.selection
        schema = selection.schema.name
        known = self._selected.get(schema, set())
        new = [path for path in selection.modules if path not in known and path not in selection.members]
        if not new or not plan.reuse:
            return
        with self._lock:
            self._selected.setdefault(schema, set()).update(new)
            self._unpaired.setdefault(schema, set()).update(new)
        self._thread.start()

    def work(self, check: StopCheck) -> bool:
        """Encode the next pair, or list those of modules that are new; return whether there may be more to do.

        Args:
            check: Called in each layer; it raises `Interrupted` if the work is to stop. Then the pair waits again.
        """
        with self._working:
            if (state := self._executor.follow()) != self._model_state:
                self._model_state = state
                self._sizes.clear()
                self.renew()
            with self._lock:
                found = next(iter(self._waiting), None)
                schema = next(iter(self._unpaired), None)
            if found is not None:
                has_room = self._encode(found, check)
                with self._lock:
                    if not has_room:
                        self._waiting.clear()
                    elif self._waiting and self._waiting[0] is found:
                        self._waiting.popleft()
            elif schema is not None:
                self._list(schema)
            return bool(self._waiting or self._unpaired)

    def renew(self) -> None:
        """Forget what waits, and what was selected: the model, or a schema, has changed. KV stays as it is."""
        with self._lock:
            self._selected.clear()
            self._unpaired.clear()
            self._waiting.clear()
            self._sizes = {each: nbytes for each, nbytes in self._sizes.items() if self._catalog.needs(each)}

    def end(self) -> None:
        """End the thread."""
        self._thread.end()

    def _list(self, schema: str) -> None:
        """Let the pairs of a schema's new modules wait, in the order in which they are encoded."""
        with self._lock:
            new, selected = self._unpaired.pop(schema, set()), set(self._selected.get(schema, ()))
        state = self._catalog.get(schema)
        if state is None:
            return
        modules = state.schema.modules
        paths = [path for path in dict.fromkeys(run.module for run in state.layout.runs) if path in selected]
        pairs = (
            _Names(schema, previous, path)
            for distance in range(1, len(paths))
            for previous, path in zip(paths, paths[distance:], strict=False)
            if (previous in new or path in new) and modules[path].sees is Sees.PREVIOUS
        )
        wanted = [*islice(pairs, MAX_PAIRS)]
        with self._lock:
            if self._selected.get(schema, set()) >= selected:  # the schema was not replaced meanwhile
                self._waiting.extend(wanted)

    def _encode(self, names: _Names, check: StopCheck) -> bool:
        """Encode a pair, and what is missing of its context. Return whether there was room."""
        state = self._catalog.get(names.schema)
        if state is None:
            return True
        try:
            for pair in state.pair_encodings({names.previous, names.path}):
                if (pair.previous, pair.path) != (names.previous, names.path):
                    continue
                missing = missing_encodings([pair.encoding], self._is_in_memory)
                if not missing:
                    continue
                size = pair.encoding.num_tokens * self._executor.model.shape.token_bytes
                if not self._has_room(size):
                    return False
                self._catalog.use_pair(state, pair.path, pair.encoding)
                if all(self._executor.encode_in_idle_time(each, check, persist=True) for each in missing):
                    self._num_encoded += 1
                    self._sizes[pair.encoding] = size
                self._executor.forget_unused(missing)  # the schema may have been removed meanwhile
        except Interrupted:
            raise
        except Exception:  # noqa: BLE001 - a pair that is not encoded ahead costs no answer
            _log.exception("module %r could not be encoded behind %r", names.path, names.previous)
        return True

    def _has_room(self, size: int) -> bool:
        """Whether memory has room for KV of this many bytes. What the store has evicted no longer counts."""
        memory = memory_tier(self._executor.store)
        if memory is None or (memory.budget_bytes is not None and memory.nbytes() + size > memory.budget_bytes // 2):
            return False
        if sum(self._sizes.values()) + size > self.limit_bytes:
            self._sizes = {each: nbytes for each, nbytes in self._sizes.items() if self._is_in_memory(each)}
        return sum(self._sizes.values()) + size <= self.limit_bytes

    def _is_in_memory(self, encoding: Encoding) -> bool:
        return not self._executor.absent([encoding])


def open_pair_encoder(promoter: Promoter | None, executor: Executor, catalog: Catalog) -> PairEncoder | None:
    """Return an encoder with the limit of a promoter; None without one."""
    return None if promoter is None else PairEncoder(executor, catalog, promoter.promote_bytes)
