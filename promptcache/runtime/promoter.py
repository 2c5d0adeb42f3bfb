"""Promotion: combinations of modules that come again are encoded in full context, in idle time or at once.

A combination is what a modular plan reuses. Its encodings in full context are nodes of a trie: combinations with the
same beginning share them. They are in memory only, within a limit of bytes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from promptcache.diagnostics import BYTES, InvalidValue, PromptCacheError, Short, one_of
from promptcache.kv import go_on, memory_tier
from promptcache.layout import (
    CombinationParts,
    Encoding,
    KVPart,
    Level,
    Plan,
    combination,
    exact_plan,
    has_combination,
    in_full_context,
)
from promptcache.locks import new_lock
from promptcache.runtime.catalog import Catalog
from promptcache.runtime.executor import Executor
from promptcache.runtime.forward_pass import StopCheck
from promptcache.runtime.idle import IdleThread, Interrupted

DEFAULT_PROMOTE_BYTES = 2**30
"""Default limit of promoted KV in a store without a memory budget."""

MAX_COMBINATIONS = 10_000
"""Limit of the combinations that are remembered: of those that came once, and of those that came again."""

_log = logging.getLogger(__name__)


class PromoteMode(StrEnum):
    """Whether combinations that come again are promoted by themselves."""

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Promotions(Short):
    """Figures of promotion so far.

    Attributes:
        num_combinations: Combinations that are promoted now.
        num_waiting: Combinations that wait for idle time.
        nbytes: KV that was encoded for them.
        num_hits: Requests that used promoted KV.
    """

    num_combinations: int = 0
    num_waiting: int = 0
    nbytes: int = 0
    num_hits: int = 0


class _Combination:
    """A combination in full context.

    Attributes:
        parts: Its parts in full context.
        nodes: Their encodings that are not the schema's own, in position order.
    """

    def __init__(self, own: CombinationParts) -> None:
        self.parts = in_full_context(own)
        self.nodes = tuple(part.encoding for part, before in zip(self.parts, own, strict=True) if part != before)


class Promoter:
    """Counts combinations, promotes those that come twice, and finds the exact plan of a request. Thread-safe.

    A request uses promoted KV only if all of its KV is in memory. Promotions end when a schema that has their modules
    is removed.
    """

    def __init__(
        self, executor: Executor, catalog: Catalog, mode: str = PromoteMode.OFF, promote_bytes: int | None = None
    ) -> None:
        """Create a promoter without promotions.

        Args:
            executor: The model, and its store.
            mode: "auto" promotes combinations that come twice; with "off", only `promote` does it.
            promote_bytes: Limit of promoted KV. None means a quarter of the store's memory budget, or
                `DEFAULT_PROMOTE_BYTES` without a budget.

        Raises:
            InvalidValue: There is no such mode, or `promote_bytes` is not a number of bytes.
        """
        one_of(PromoteMode).check("promote", mode, InvalidValue)
        (BYTES | None).check("promote_bytes", promote_bytes, InvalidValue)
        if promote_bytes is None:
            memory = memory_tier(executor.store)
            budget_bytes = None if memory is None else memory.budget_bytes
            promote_bytes = DEFAULT_PROMOTE_BYTES if budget_bytes is None else budget_bytes // 4
        self._promote_bytes = promote_bytes
        self._is_automatic = mode == PromoteMode.AUTO
        self._executor, self._catalog = executor, catalog
        self._came_once: OrderedDict[int, None] = OrderedDict()  # by hash; an equal hash promotes earlier
        self._combinations: OrderedDict[CombinationParts, _Combination | None] = OrderedDict()  # by last use
        self._waiting: dict[CombinationParts, None] = {}
        self._nodes: OrderedDict[Encoding, int] = OrderedDict()  # bytes; by last use, and a node before its context
        self._nbytes = 0
        self._num_hits = 0
        self._lock = new_lock()
        self._working = new_lock()
        self._thread = IdleThread(self.work, executor.activity)
        catalog.on_drop.append(self.end_unneeded)

    @property
    def figures(self) -> Promotions:
        """Figures so far."""
        with self._lock:
            known, nodes = tuple(self._combinations.values()), frozenset(self._nodes)
            nbytes, num_waiting = self._nbytes, len(self._waiting)
        return Promotions(
            num_combinations=sum(each is not None and nodes.issuperset(each.nodes) for each in known),
            num_waiting=num_waiting,
            nbytes=nbytes,
            num_hits=self._num_hits,
        )

    def exact(self, plan: Plan, salt: str | None = None) -> Plan | None:
        """Return the exact plan of a request if its combination is promoted and all of its KV is in memory.

        Each call counts as one use of the combination. It takes microseconds.

        Args:
            salt: Requests with arguments share promotions only with requests of the same salt.
        """
        if not (self._is_automatic or self._combinations) or not has_combination(plan):
            return None
        own = combination(plan, salt)
        with self._lock:
            found = self._used(own)
        if found is None:
            return None
        if self._executor.absent([part.encoding for part in found.parts]):
            self._lose(own, found)
            return None
        with self._lock:
            self._num_hits += 1
        return exact_plan(plan, found.parts)

    def promote(self, plan: Plan, salt: str | None = None) -> int:
        """Promote the combination of a plan now, in memory like those that come twice.

        Args:
            salt: As for `exact`.

        Returns:
            The number of tokens whose KV in full context was added; 0 if the plan is exact, or promoted already.

        Raises:
            InvalidValue: The plan is modular, and text that is not cached comes first.
            PromptCacheError: Its KV in full context needs more than the limit, or more than memory has room for.
        """
        if plan.level is Level.EXACT:
            return 0
        if not has_combination(plan):
            raise InvalidValue("a prompt that begins with text that is not cached cannot be promoted: cache it")
        own = combination(plan, salt)
        found = _Combination(own)
        nbytes = sum(map(self._size, found.nodes))
        if nbytes > self._promote_bytes:
            raise PromptCacheError(
                f"promoting this prompt needs {nbytes} bytes of KV, promote_bytes={self._promote_bytes}: give the "
                "engine a higher limit, or put fewer modules into the prompt"
            )
        with self._executor.activity, self._working:  # ends work in idle time within a layer
            own_nodes = frozenset(found.nodes)
            self._executor.fetch(each.encoding for each in found.parts if each.encoding not in own_nodes)
            self._lose(own, found)
            with self._lock:
                if self._is_needed(own):
                    self._wait(own)
            num_tokens, is_done = 0, False
            try:
                while (node := self._next_node(own, found)) is not None and self._encode(own, node, go_on):
                    num_tokens += node.num_tokens
            finally:
                with self._lock:
                    is_done = own not in self._waiting and self._is_promoted(found)
                    if not is_done:
                        self._forget(own)
        if not is_done or self._executor.absent(part.encoding for part in found.parts):
            raise PromptCacheError(
                f"the memory of the store has no room to promote this prompt, {nbytes} bytes of KV: give it a larger "
                "budget"
            )
        return num_tokens

    def work(self, check: StopCheck) -> bool:
        """Encode the next node of the combination that waits longest; return whether there may be more to do.

        Args:
            check: Called in each layer; it raises `Interrupted` if the work is to stop. Then nothing is stored.
        """
        with self._working:
            if not self._executor.model.is_unchanged():  # nothing can be encoded, so nothing is evicted for it
                return False
            with self._lock:
                own = next(iter(self._waiting), None)
                found = None if own is None else self._combinations[own]
            if own is None:
                return False
            if found is None:
                found = _Combination(own)  # takes a millisecond with a hundred parts, so no request does it
            node = self._next_node(own, found)
            if node is not None and not self._encode_in_idle_time(own, node, check):
                with self._lock:
                    self._forget(own)
            return True

    def _next_node(self, own: CombinationParts, found: _Combination) -> Encoding | None:
        """Return the next node to encode of a waiting combination, and make room; None if there is none."""
        with self._lock:
            if own not in self._waiting:  # it was forgotten meanwhile
                return None
            self._combinations[own] = found
            self._touch(found)
            node = next((each for each in found.nodes if each not in self._nodes), None)
            if node is None:
                del self._waiting[own]
            elif sum(map(self._size, found.nodes)) > self._promote_bytes:
                self._forget(own)
                node = None
            else:
                size = self._size(node)
                while self._nbytes + size > self._promote_bytes:
                    self._free([next(iter(self._nodes))])  # the least recently used, and no other has it as context
            return node

    def _encode_in_idle_time(self, own: CombinationParts, node: Encoding, check: StopCheck) -> bool:
        """Return `_encode`; an error is logged."""
        try:
            return self._encode(own, node, check)
        except Interrupted:
            raise
        except Exception:  # noqa: BLE001 - a promotion costs no answer
            _log.exception("a combination of modules could not be promoted")
            return False

    def _encode(self, own: CombinationParts, node: Encoding, check: StopCheck) -> bool:
        """Encode a node of a waiting combination, and return whether it is in memory now."""
        is_kept = is_added = False
        self._catalog.hold(node)
        try:
            is_kept = self._executor.encode_in_memory(node, check)
        finally:
            with self._lock:
                if is_kept and own in self._waiting:
                    is_added = True
                    self._nodes[node] = self._size(node)
                    self._nbytes += self._nodes[node]
            if not is_added:
                self._catalog.release([node])
        return is_added

    def end_unneeded(self) -> None:
        """End the promotions of modules that no schema has any more."""
        with self._lock:
            for own in [each for each in self._combinations if not self._is_needed(each)]:
                self._forget(own)
            used = {node for each in self._combinations.values() if each is not None for node in each.nodes}
            self._free([node for node in self._nodes if node not in used])

    def end(self) -> None:
        """End the thread."""
        self._thread.end()

    def _used(self, own: CombinationParts) -> _Combination | None:
        """Count a use, and return the combination if all of its nodes were encoded."""
        if own not in self._combinations:
            self._came(own)
            return None
        self._combinations.move_to_end(own)
        found = self._combinations[own]
        if found is not None:
            self._touch(found)
        if own in self._waiting:
            self._thread.start()
            return None
        if found is not None and self._is_promoted(found):
            return found
        self._forget(own)  # some of its nodes were evicted: its count restarts
        self._came(own)
        return None

    def _came(self, own: CombinationParts) -> None:
        """Count a combination that is not remembered; the second time, let it wait for idle time."""
        if not self._is_automatic:
            return
        number = hash(own)
        if number not in self._came_once:
            self._came_once[number] = None
            if len(self._came_once) > MAX_COMBINATIONS:
                self._came_once.popitem(last=False)
            return
        del self._came_once[number]
        if self._is_needed(own):
            self._wait(own)
            self._thread.start()

    def _wait(self, own: CombinationParts) -> None:
        """Remember a combination that waits to be encoded."""
        if own not in self._combinations:
            if len(self._combinations) >= MAX_COMBINATIONS:
                self._forget(next(iter(self._combinations)))
            self._combinations[own] = None
        self._waiting[own] = None

    def _is_promoted(self, found: _Combination) -> bool:
        return all(node in self._nodes for node in found.nodes)

    def _touch(self, used: _Combination) -> None:
        """Mark the nodes of a combination as used, each before its context."""
        for node in reversed(used.nodes):
            if node in self._nodes:
                self._nodes.move_to_end(node)

    def _lose(self, own: CombinationParts, found: _Combination) -> None:
        """Forget a combination some of whose KV the store has evicted."""
        lost = [node for node in found.nodes if self._executor.absent([node])]
        with self._lock:
            self._forget(own)
            self._free([node for node in lost if node in self._nodes])

    def _forget(self, own: CombinationParts) -> None:
        """Forget a combination. Its nodes stay until others need the room."""
        self._combinations.pop(own, None)
        self._waiting.pop(own, None)

    def _free(self, nodes: Sequence[Encoding]) -> None:
        for node in nodes:
            self._nbytes -= self._nodes.pop(node)
        self._catalog.release(nodes)

    def _is_needed(self, own: CombinationParts) -> bool:
        return all(self._catalog.needs(each.encoding) for each in own if isinstance(each, KVPart))

    def _size(self, node: Encoding) -> int:
        return node.num_tokens * self._executor.model.shape.token_bytes
