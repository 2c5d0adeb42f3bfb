"""The scheduler: requests wait, join the batch, are prefilled and decoded step by step, and leave.

One thread at a time uses a scheduler. `answer` runs one until all of its requests are answered.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from promptcache.answers import TokenLogprobs
from promptcache.decode.completion import Completion
from promptcache.decode.decoder import Decoder, ServiceObserver
from promptcache.decode.job import Job, job_of
from promptcache.decode.request import Request
from promptcache.diagnostics import BYTES_ABOVE_0, Cancelled, InvalidValue, QueueTimeout
from promptcache.encode import CHUNK_TOKENS, Executor, Prepared, prepare
from promptcache.rows import tail_size

DEFAULT_BATCH_BYTES = 2**30
"""Default limit of the KV of own tokens in one batch."""

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
    """Waiting and running requests of one model. Not thread-safe, except for `add`.

    Attributes:
        decoder: Has the running ones.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_rows: int = 1,
        step_tokens: int = CHUNK_TOKENS,
        tail_bytes: int = DEFAULT_BATCH_BYTES,
        queue_timeout_s: float = math.inf,
        observer: ServiceObserver | None = None,
        fetches_apart: bool = False,
    ) -> None:
        """Create a scheduler without jobs; its limits are fields of `ServiceLimits`.

        Args:
            observer: Gets the times of steps and of waiting.
            fetches_apart: Read and encode KV in other threads, while the running requests go on. Otherwise a request
                gets its KV in the step that admits it.
        """
        self._executor = executor
        self._max_rows, self._step_tokens = max_rows, step_tokens
        self._tail_bytes, self._queue_timeout_s = tail_bytes, queue_timeout_s
        self._observer = observer or ServiceObserver()
        self.decoder = Decoder(executor, self._observer)
        self._waiting: deque[Job] = deque()
        self._fetching: deque[Job] = deque()
        num_threads = min(max_rows, _MAX_THREADS)
        self._threads = ThreadPoolExecutor(num_threads, "promptcache-fetch") if fetches_apart else None

    @property
    def counts(self) -> ServiceCounts:
        """Numbers of running and waiting requests now. Any thread may call this."""
        waiting = tuple(self._waiting)
        return ServiceCounts(
            num_running=len(self._fetching) + len(self.decoder.running),
            num_waiting=len(waiting),
            num_waiting_tokens=sum(job.num_tokens for job in waiting),
            tail_bytes=self.decoder.batch.tails.nbytes,
        )

    def add(self, job: Job) -> None:
        """Queue a job. Any thread may call this."""
        job.submitted = time.perf_counter()
        self._waiting.append(job)

    def warm_up(self) -> None:
        """Record the graphs of steps before the first request, where the model has any.

        One row alone needs few of them, which are recorded when it does.
        """
        if self._executor.graphs is not None and self._max_rows > 1:
            with self._executor.activity:
                self._executor.graphs.record_all()

    def step(self) -> bool:
        """Do the next piece of work; return False if there is nothing to do."""
        if not (self._waiting or self._fetching or self.decoder.running):
            return False
        with self._executor.activity:
            self._drop()
            if self._waiting:
                self._admit()
            if self._fetching:
                self._fetch()
            if self.decoder.running:
                self.decoder.step(self._step_tokens)
                return True
            return bool(self._fetching or self._waiting)

    def fail_all(self, error: BaseException) -> None:
        """End all jobs with an error. The scheduler is not used again."""
        for job in (*self._waiting, *self._fetching, *self.decoder.running):
            job.is_cancelled = True
            self._end(job, error)
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _drop(self) -> None:
        """End the jobs that were cancelled or have waited too long."""
        now = time.perf_counter()
        for job in tuple(self._waiting):
            waited = now - job.submitted
            if job.is_cancelled or waited > self._queue_timeout_s:
                self._waiting.remove(job)
                timeout = QueueTimeout(f"the request waited {waited:.0f} s for other requests; try again later")
                self._end(job, Cancelled("the request was cancelled") if job.is_cancelled else timeout)
        for job in (*self._fetching, *self.decoder.running):
            if job.is_cancelled:
                self._end(job, Cancelled("the request was cancelled"))

    def _admit(self) -> None:
        active = [*self._fetching, *self.decoder.running]
        count = num_admitted(
            (tail_size(job.num_tokens) for job in tuple(self._waiting)),
            len(active),
            sum(tail_size(job.num_tokens) for job in active),
            self._max_rows,
            self._tail_bytes // self._executor.model.shape.token_bytes,
        )
        for _ in range(count):
            job = self._waiting.popleft()
            self._observer.admitted(time.perf_counter() - job.submitted)
            self._fetching.append(job)

    def _fetch(self) -> None:
        """Fetch the KV of admitted jobs. A job with all of its KV joins the running ones."""
        for job in tuple(self._fetching):
            try:
                prepared = self._prepared(job)
                if prepared is not None:
                    self._fetching.remove(job)
                    self.decoder.join(job, prepared)
            except Exception as error:  # noqa: BLE001 - passed to the request's listener
                self._end(job, error)
        if not self.decoder.running:
            wait([job.preparing for job in self._fetching if job.preparing is not None], _LOOK_S, FIRST_COMPLETED)

    def _prepared(self, job: Job) -> Prepared | None:
        """Return the plan of a job with its KV, or None if it is not complete yet.

        The threads of a scheduler that has some read and encode KV that is not in memory, and choose the tokens that
        `repair="attended-K"` computes again. A job waits while some of its KV is fetched for another one.
        """
        if job.preparing is not None:
            if not job.preparing.done():
                return None
            prepared, job.preparing = job.preparing.result(), None
            return prepared
        fetched = [each.missing_keys for each in self._fetching if each.preparing is not None]
        if not all(map(job.missing_keys.isdisjoint, fetched)):
            return None
        request, executor = job.request, self._executor

        def check_cancelled(_num_done: int, _num_all: int) -> None:
            if job.is_cancelled:
                raise Cancelled("the request was cancelled")

        run = partial(
            prepare,
            request.plan,
            executor,
            refiners=request.refiners,
            history=request.history,
            salt=request.options.salt,
            progress=check_cancelled,
        )
        if self._threads is None:
            return run()
        job.missing_keys = executor.store.absent([executor.key(part.encoding) for part in request.plan.tokens.parts])
        if not job.missing_keys and not request.plan.awaits_choice:
            return run()
        if all(map(job.missing_keys.isdisjoint, fetched)):
            job.preparing = self._threads.submit(run)
        return None

    def _end(self, job: Job, result: Completion | BaseException) -> None:
        """Remove a job and pass the result to its listener."""
        if job in self._fetching:
            self._fetching.remove(job)
            if job.preparing is not None:
                job.preparing.cancel()
        self.decoder.end(job, result)


def num_admitted(waiting: Iterable[int], num_running: int, reserved: int, max_rows: int, max_reserved: int) -> int:
    """Return the number of waiting requests that may join, in order of arrival.

    A request that does not fit is not overtaken by later ones that do. A request larger than the limit runs alone.

    Args:
        waiting: Tokens that each waiting request reserves, first come first.
        reserved: Tokens that the running ones reserve.
    """
    count = 0
    for size in waiting:
        running = num_running + count
        if running >= max_rows or (running and reserved + size > max_reserved):
            break
        count += 1
        reserved += size
    return count


def answer(
    requests: Sequence[Request], executor: Executor, batch_bytes: int = DEFAULT_BATCH_BYTES
) -> tuple[Completion, ...]:
    """Answer planned requests together, each with its number of sequences, and return their completions in order.

    Args:
        batch_bytes: Limit of the KV that running requests add themselves. One request always fits.

    Raises:
        InvalidValue: `batch_bytes` is not a number of bytes.
        The first error of any request. The others are ended.
    """
    BYTES_ABOVE_0.check("batch_bytes", batch_bytes, InvalidValue)
    completions: dict[int, Completion] = {}
    errors: list[BaseException] = []

    def listen(index: int, item: int | TokenLogprobs | Completion | BaseException) -> None:
        if isinstance(item, Completion):
            completions[index] = item
        elif isinstance(item, BaseException):
            errors.append(item)

    rows = [row for request in requests for row in request.copies(request.options.num_return_sequences)]
    if not rows:
        return ()
    jobs = [job_of(row, partial(listen, index), executor) for index, row in enumerate(rows)]
    scheduler = Scheduler(executor, max_rows=len(rows), tail_bytes=batch_bytes)
    for job in jobs:
        scheduler.add(job)
    try:
        while scheduler.step() and not errors:
            pass
        if errors:
            raise errors[0]
    finally:  # after an error or an interrupt
        scheduler.fail_all(Cancelled("another request of the batch failed"))
    made = (completions[index] for index in range(len(rows)))
    return tuple(_joined([next(made) for _ in range(request.options.num_return_sequences)]) for request in requests)


def _joined(completions: Sequence[Completion]) -> Completion:
    """Return the first completion of a request with the texts of the others."""
    first, *others = completions
    if not others:
        return first
    num_generated = sum(len(each.token_ids) for each in completions)
    return replace(
        first,
        alternatives=tuple(each.text for each in others),
        usage=replace(first.usage, num_generated_tokens=num_generated),
        timing=max((each.timing for each in completions), key=lambda timing: timing.ttft_s + timing.decode_s),
    )
