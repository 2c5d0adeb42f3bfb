"""Repetition: combinations of modules that came are prefilled plainly, in idle time or at once, for the next time.

A combination is all that a modular plan has up to its last cached token. History keeps its KV: under the `SHARED` salt,
or under the salt of the request if it has arguments. A request whose combination history has is answered by the plain
plan: what history has is not prefilled again, and the answer is exact.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from promptcache.diagnostics import TEXT, InvalidValue, PromptCacheError, Short
from promptcache.encode.executor import Executor
from promptcache.encode.idle import IdleThread, Interrupted
from promptcache.kv import go_on
from promptcache.layout import Level, Origin, Plan, RequestTokens
from promptcache.locks import new_lock
from promptcache.rows import SHARED, Salt, StopCheck
from promptcache.settings import PromoteMode

MAX_COMBINATIONS = 256
"""Limit of the combinations that wait; those that came longest ago are forgotten. One of 4,096 tokens takes 190 kB."""

MAX_LOST_TOKENS = 256
"""Tokens of history that a request may compute again to be exact. History belongs to the KV below it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Promotions(Short):
    """Figures of promotion so far.

    Attributes:
        num_combinations: Combinations that were promoted.
        num_waiting: Combinations that wait for idle time.
        num_hits: Requests that were exact because of a promotion.
    """

    num_combinations: int = 0
    num_waiting: int = 0
    num_hits: int = 0


_Combination: TypeAlias = tuple[RequestTokens, Salt]
"""All tokens of a plan up to its last cached one, as new tokens, and the salt of history for them."""


class Repetition:
    """Promotes combinations that came, and refines the plans of requests. Thread-safe.

    Attributes:
        thread: Promotes in idle time.
    """

    def __init__(self, executor: Executor, mode: str = PromoteMode.OFF) -> None:
        """Create one without promotions.

        Args:
            mode: "auto" promotes combinations in idle time; with "off", only `promote` does it.

        Raises:
            InvalidValue: It is "auto", and there is no history.
        """
        self._is_automatic = mode == PromoteMode.AUTO
        if self._is_automatic and executor.history is None:
            raise InvalidValue('promote="auto" keeps KV in history, and history=False has none')
        self._executor = executor
        self._waiting: OrderedDict[_Combination, int] = OrderedDict()  # computed tokens, in the order of the last use
        self._num_promoted = self._num_hits = 0
        self._lock = new_lock()
        self._working = new_lock()
        self.thread = IdleThread(self.work, executor.activity)

    @property
    def figures(self) -> Promotions:
        """Figures so far."""
        return Promotions(num_combinations=self._num_promoted, num_waiting=len(self._waiting), num_hits=self._num_hits)

    def refine(self, plan: Plan, salt: str | None) -> Plan:
        """Return the plain plan of a request if history has its combination; a `Refiner`.

        Other combinations wait for idle time. A request that would lose much history keeps its plan, such as
        the next turn of a long conversation that began before the promotion.
        """
        if plan.level is Level.EXACT or not (self._is_automatic or self._num_promoted):
            return plan
        plain, combination = plan.plain(), _combination(plan, salt)
        found = self._executor.recall(plain.tokens, salt)
        num_wanted = min(len(combination[0].token_ids), len(plain.tokens.token_ids) - 1)
        if found is None or found.missing[0] < num_wanted:
            if self._is_automatic:  # it waits for idle time
                with self._lock:
                    self._waiting.setdefault(combination, 0)
                    self._waiting.move_to_end(combination)
                    if len(self._waiting) > MAX_COMBINATIONS:
                        self._waiting.popitem(last=False)
                self.thread.start()
            return plan
        known = self._executor.recall(plan.tokens, salt)
        if known is not None and len(found.missing) > len(known.missing) + MAX_LOST_TOKENS:
            return plan
        with self._lock:
            self._num_hits += 1
        return plain

    def promote(self, plan: Plan, salt: str | None = None) -> int:
        """Promote the combination of a plan now.

        Returns:
            The number of tokens that were computed; 0 if the plan is exact, or promoted already.

        Raises:
            InvalidValue: There is no history.
            PromptCacheError: Memory has no room for it.
        """
        (TEXT | None).check("salt", salt, InvalidValue)
        if plan.level is Level.EXACT:
            return 0
        if self._executor.history is None:
            raise InvalidValue("a promotion is kept in history, and history=False has none")
        combination, num_tokens = _combination(plan, salt), 0
        with self._executor.activity, self._working:  # ends work in idle time within a layer
            while not self._is_known(combination):
                num_kept = self._executor.extend_history(*combination, go_on)
                num_tokens += num_kept
                if num_kept == 0 or num_tokens > len(combination[0].token_ids):  # memory evicts what was kept
                    nbytes = len(combination[0].token_ids) * self._executor.model.shape.token_bytes
                    raise PromptCacheError(
                        f"memory has no room to promote this prompt, {nbytes} bytes of KV: give the store more "
                        "memory_bytes, or put fewer modules into the prompt"
                    )
            with self._lock:
                self._waiting.pop(combination, None)
                self._num_promoted += num_tokens > 0
        return num_tokens

    def work(self, check: StopCheck) -> bool:
        """Compute more of the combination that came last; return whether there may be more to do.

        Args:
            check: Called in each layer; it raises `Interrupted` if the work is to stop. What was computed before is
                kept.
        """
        with self._working:
            if not self._executor.model.is_unchanged():
                return False
            with self._lock:
                combination = next(reversed(self._waiting), None)
            if combination is None:
                return False
            num_kept, is_known = 0, False
            try:
                num_kept = self._executor.extend_history(*combination, check)
                is_known = self._is_known(combination)
            except Interrupted:
                raise
            except Exception:  # noqa: BLE001 - a promotion costs no answer
                _log.exception("a combination of modules could not be promoted")
            with self._lock:
                self._num_promoted += is_known
                num_computed = self._waiting.get(combination, 0) + num_kept
                if num_kept == 0 or is_known or num_computed > len(combination[0].token_ids):
                    self._waiting.pop(combination, None)
                elif combination in self._waiting:
                    self._waiting[combination] = num_computed
            return True

    def _is_known(self, combination: _Combination) -> bool:
        found = self._executor.recall(*combination, is_whole=True)
        return found is not None and not found.missing


def _combination(plan: Plan, salt: str | None) -> _Combination:
    last = max(index for index, piece in enumerate(plan.pieces) if piece.source or piece.origin is Origin.LAST)
    pieces = plan.pieces[: last + 1]
    tokens = RequestTokens(
        parts=(),
        token_ids=tuple(token_id for piece in pieces for token_id in piece.token_ids),
        position_ids=tuple(position for piece in pieces for position in piece.position_ids),
    )
    has_argument = any(piece.origin is Origin.ARGUMENT for piece in pieces)
    return tokens, salt if has_argument else SHARED
