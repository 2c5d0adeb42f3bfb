"""The scheduler: requests wait, join the batch, are prefilled and decoded step by step, and leave.

One thread at a time uses a scheduler.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from promptcache.decode.completion import Completion
from promptcache.decode.decoder import Decoder, ServiceObserver
from promptcache.decode.job import Job
from promptcache.diagnostics import Cancelled, QueueTimeout
from promptcache.encode import Executor, Prepared
from promptcache.settings import ServiceLimits

_LOOK_S = 0.02
"""Seconds between checks for new and cancelled requests, while the KV of all others is fetched."""

_MAX_THREADS = 32
"""Maximum number of threads that fetch KV. A thread starts when it has work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCounts:
    """Numbers of running and waiting requests.

    Attributes:
        num_running: Requests that are fetched, prefilled or decoded.
        num_waiting_tokens: Tokens of waiting requests, prompt and answer.
        tail_bytes: Memory of the KV that running requests add themselves.
    """

    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    tail_bytes: int


class Scheduler:
    """Waiting and running requests of one model. Not thread-safe, except for `add`."""

    def __init__(
        self,
        executor: Executor,
        limits: ServiceLimits,
        *,
        observer: ServiceObserver | None = None,
        fetches_first: bool = False,
    ) -> None:
        """Create a scheduler without jobs.

        Args:
            observer: Gets the times of steps and of waiting.
            fetches_first: Compute nothing while admitted requests wait for their KV. Without new arrivals this takes
                fewer forward passes.
        """
        self._executor = executor
        self._limits = limits
        self._observer = observer or ServiceObserver()
        self._fetches_first = fetches_first
        self._decoder = Decoder(executor, self._observer)
        self._waiting: deque[Job] = deque()
        self._fetching: deque[Job] = deque()
        self._threads = ThreadPoolExecutor(min(limits.max_rows, _MAX_THREADS), "promptcache-fetch")

    @property
    def num_failed(self) -> int:
        """Number of forward passes that failed since the last successful one."""
        return self._decoder.num_failed

    @property
    def counts(self) -> ServiceCounts:
        """Numbers of running and waiting requests now. Any thread may call this."""
        waiting = tuple(self._waiting)
        return ServiceCounts(
            num_running=len(self._fetching) + len(self._running),
            num_waiting=len(waiting),
            num_waiting_tokens=sum(job.num_tokens for job in waiting),
            tail_bytes=self._decoder.tail_bytes,
        )

    @property
    def _running(self) -> list[Job]:
        return self._decoder.running

    def add(self, job: Job) -> None:
        """Queue a job. Any thread may call this."""
        job.submitted = time.perf_counter()
        self._waiting.append(job)

    def warm_up(self) -> None:
        """Record the graphs of steps before the first request, where the model has any.

        One row alone needs few of them, which are recorded when it does.
        """
        if self._executor.graphs is not None and self._limits.max_rows > 1:
            with self._executor.activity:
                self._executor.graphs.record_all()

    def step(self) -> bool:
        """Do the next piece of work; return False if there is nothing to do."""
        if not (self._waiting or self._fetching or self._running):
            return False
        with self._executor.activity:
            self._drop()
            self._admit()
            busy = self._fetch()
            if self._running and not (self._fetches_first and self._fetching):
                self._decoder.step(self._limits.step_tokens)
                return True
            return busy or bool(self._waiting)

    def fail_all(self, error: BaseException) -> None:
        """End all jobs with an error. The scheduler is not used again."""
        for job in (*self._waiting, *self._fetching, *self._running):
            job.is_cancelled = True
            self._end(job, error)
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _drop(self) -> None:
        """End the jobs that were cancelled or have waited too long."""
        now = time.perf_counter()
        for job in tuple(self._waiting):
            waited = now - job.submitted
            if job.is_cancelled or waited > self._limits.queue_timeout_s:
                self._waiting.remove(job)
                self._end(job, Cancelled("the request was cancelled") if job.is_cancelled else _timeout(waited))
        for job in (*self._fetching, *self._running):
            if job.is_cancelled:
                self._end(job, Cancelled("the request was cancelled"))

    def _admit(self) -> None:
        active = [*self._fetching, *self._running]
        count = num_admitted(
            (job.reserved for job in tuple(self._waiting)),
            len(active),
            sum(job.reserved for job in active),
            self._limits.max_rows,
            self._limits.tail_bytes // self._executor.model.shape.token_bytes,
        )
        for _ in range(count):
            job = self._waiting.popleft()
            self._observer.admitted(time.perf_counter() - job.submitted)
            self._fetching.append(job)

    def _fetch(self) -> bool:
        """Fetch the KV of admitted jobs. A job with all of its KV joins the running ones."""
        for job in tuple(self._fetching):
            try:
                if job.preparing is None:
                    self._prepare(job)
                elif job.preparing.done():
                    prepared, job.preparing = job.preparing.result(), None
                    self._join(job, prepared)
            except Exception as error:  # noqa: BLE001 - passed to the request's listener
                self._end(job, error)
        if self._fetches_first or not self._running:
            wait([job.preparing for job in self._fetching if job.preparing is not None], _LOOK_S, FIRST_COMPLETED)
        return bool(self._fetching)

    def _prepare(self, job: Job) -> None:
        """Prepare the plan of a job. Another thread reads or encodes KV that is not in memory, and chooses
        the tokens that `repair="attended-K"` computes again.

        A job waits while some of its KV is fetched for another one.
        """
        fetched = [each.missing_keys for each in self._fetching if each.preparing is not None]
        if not all(map(job.missing_keys.isdisjoint, fetched)):
            return
        wanted = [part.encoding for part in job.request.plan.tokens.parts]
        job.missing_keys = self._executor.absent(wanted)
        if not job.missing_keys and not job.request.plan.awaits_choice:
            self._join(job, job.request.prepare(self._executor))
        elif all(map(job.missing_keys.isdisjoint, fetched)):
            progress = partial(_check_cancelled, job)
            job.preparing = self._threads.submit(job.request.prepare, self._executor, progress)

    def _join(self, job: Job, prepared: Prepared) -> None:
        self._fetching.remove(job)
        self._decoder.join(job, prepared)

    def _end(self, job: Job, result: Completion | BaseException) -> None:
        """Remove a job and pass the result to its listener."""
        if job in self._fetching:
            self._fetching.remove(job)
            if job.preparing is not None:
                job.preparing.cancel()
        self._decoder.end(job, result)


def num_admitted(waiting: Iterable[int], num_running: int, reserved: int, max_rows: int, max_reserved: int) -> int:
    """Return the number of waiting requests that may join, in order of arrival.

    A request that does not fit is not overtaken by later ones that do. A request larger than the limit runs alone.

    Args:
        waiting: Tokens that each waiting request reserves, first come first.
        num_running: Number of running requests.
        reserved: Tokens that they reserve.
    """
    count = 0
    for size in waiting:
        running = num_running + count
        if running >= max_rows or (running and reserved + size > max_reserved):
            break
        count += 1
        reserved += size
    return count


def _check_cancelled(job: Job, num_done: int, num_all: int) -> None:
    """End the fetch of a cancelled job between two forward passes."""
    if job.is_cancelled:
        raise Cancelled("the request was cancelled")


def _timeout(waited_s: float) -> QueueTimeout:
    return QueueTimeout(f"the request waited {waited_s:.0f} s for other requests; try again later")
