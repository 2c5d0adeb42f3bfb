"""Compares every N-th request with plain prefill in idle time, to show whether reuse is good enough."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Callable, Sequence

from promptcache.audit.ladder import Ladder
from promptcache.audit.report import Distance
from promptcache.diagnostics import InvalidValue, millinats_text, number, whole
from promptcache.layout import Plan
from promptcache.locks import new_lock
from promptcache.runtime import Executor, IdleThread, Interrupted, StopCheck, WatchedFidelity
from promptcache.tokenizer import Tokenizer

NUM_RECENT = 50
"""Figures are means over this many of the last compared requests."""

NUM_PLACES = 8
"""Maximum number of tokens of plain prefill's greedy answer at which a request is compared."""

DEFAULT_MAX_DIVERGENCE = 0.1
"""Default limit of the mean divergence in nats."""

_EVERY = whole(0, unit="requests")
_MAX_DIVERGENCE = number(0)
_log = logging.getLogger(__name__)


class Watcher:
    """Compares every N-th request that reuses KV with plain prefill. Thread-safe.

    One request waits at most: if there is no idle time, others are left out. A warning is logged when the mean
    divergence passes the limit.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        end_ids: Callable[[], Sequence[int]],
        every: int,
        max_divergence: float = DEFAULT_MAX_DIVERGENCE,
    ) -> None:
        """Create a watcher that has compared nothing.

        Args:
            end_ids: Returns the tokens that end an answer.
            every: One of this many requests is compared.
            max_divergence: The limit of the mean divergence, in nats.
        """
        self._executor, self._tokenizer, self._end_ids = executor, tokenizer, end_ids
        self._every, self._max_divergence = every, max_divergence
        self._recent: deque[Distance] = deque(maxlen=NUM_RECENT)
        self._num_requests = self._num_compared = 0
        self._waiting: Plan | None = None
        self._is_above = False
        self._lock = new_lock()
        self._thread = IdleThread(self.work, executor.activity)

    @property
    def figures(self) -> WatchedFidelity:
        """The means of the last requests that were compared."""
        with self._lock:
            recent, num_compared = tuple(self._recent), self._num_compared
        if not recent:
            return WatchedFidelity()
        return WatchedFidelity(
            num_compared=num_compared,
            divergence=statistics.fmean(each.divergence for each in recent),
            agreement=statistics.fmean(each.agreement for each in recent),
        )

    def note(self, plan: Plan) -> None:
        """Count a request with this plan. The N-th one is compared in idle time."""
        if not plan.reuse:
            return
        with self._lock:
            self._num_requests += 1
            if self._num_requests % self._every:
                return
            self._waiting = plan
        self._thread.start()

    def work(self, check: StopCheck) -> bool:
        """Compare the waiting request, if there is one. Return False: no other request waits.

        Args:
            check: Called in each layer of plain prefill; it raises `Interrupted` if the work is to stop. The request
                then waits again.
        """
        with self._lock:
            plan, self._waiting = self._waiting, None
        if plan is not None:
            try:
                ladder = Ladder(plan, self._executor, self._tokenizer, self._end_ids(), NUM_PLACES, check)
                self._add(ladder.of_plan(plan, self._executor))
            except Interrupted:
                with self._lock:
                    self._waiting = self._waiting or plan
                raise
            except Exception:  # noqa: BLE001 - a comparison costs no answer
                _log.exception("a request could not be compared with plain prefill")
        return False

    def end(self) -> None:
        """End the thread."""
        self._thread.end()

    def _add(self, distance: Distance) -> None:
        with self._lock:
            self._recent.append(distance)
            self._num_compared += 1
        mean = self.figures.divergence or 0.0
        was_above, self._is_above = self._is_above, mean > self._max_divergence
        if self._is_above and not was_above:
            _log.warning(
                "cached answers are %s millinats from plain prefill in the mean of the last %d requests that were "
                "compared, and the limit is %s: `promptcache fidelity` finds settings that are nearer",
                millinats_text(mean),
                len(self._recent),
                millinats_text(self._max_divergence),
            )


def open_watcher(
    executor: Executor,
    tokenizer: Tokenizer,
    end_ids: Callable[[], Sequence[int]],
    every: int,
    max_divergence: float,
) -> Watcher | None:
    """Return a watcher of every N-th request; None if `every` is 0.

    Raises:
        InvalidValue: `every` is not a number of requests, or `max_divergence` not a number from 0 on.
    """
    _EVERY.check("watch", every, InvalidValue)
    _MAX_DIVERGENCE.check("max_divergence", max_divergence, InvalidValue)
    return Watcher(executor, tokenizer, end_ids, every, max_divergence) if every else None
