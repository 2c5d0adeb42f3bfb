"""The scheduler: requests wait, join the batch, are prefilled and decoded step by step, and leave.

One thread at a time uses a scheduler. Requests that a row cannot express, such as beams, are answered alone in between.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any, TypeAlias

import torch

from promptcache.diagnostics import Cancelled, InvalidGeneration, QueueTimeout
from promptcache.runtime.answer import OwnKVUsage, answer, begun, completion
from promptcache.runtime.completion import Completion, Timing
from promptcache.runtime.encode import CHUNK_TOKENS
from promptcache.runtime.executor import Executor, Fetched
from promptcache.runtime.finite import has_finite_logits
from promptcache.runtime.generate import end_ids
from promptcache.runtime.hf.model import token_tensor
from promptcache.runtime.hf.options import number_of, pop_stopping_criteria
from promptcache.runtime.history import Recalled
from promptcache.runtime.logprobs import TokenLogprobs, token_logprobs
from promptcache.runtime.request import Request
from promptcache.runtime.serving.admission import ServiceLimits, num_admitted, reserved_tokens
from promptcache.runtime.serving.batch import Batch, Row
from promptcache.runtime.serving.metrics import ServiceObserver
from promptcache.runtime.serving.sampling import SampledRow, SamplingSettings, draw, sample, sampling_settings
from promptcache.runtime.serving.seeded_draws import SeededDraws

_LOOK_S = 0.02
"""Seconds between looks for new and cancelled requests, while the KV of all others is fetched."""

_MAX_THREADS = 32
"""Threads that fetch KV. None is started before it has work."""

_log = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[int | TokenLogprobs | Completion | BaseException], None]
"""Gets each generated token, then the completion or an error. It must not block.

A token comes with its log-probabilities if the request has them. A request that is answered alone passes no tokens in
this case; log-probabilities come with the completion.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request on its way through the scheduler.

    Attributes:
        settings: None if no row can express the options; then the request is answered alone.
        is_seeded: Whether the caller gave the seed of the generator.
        seen_ids: Memory `[1, T]` for all tokens of prompt and answer, if a penalty or a criterion reads them.
        pending: Prompt tokens that are not computed yet.
        is_cancelled: Set by any thread. The scheduler reads it between steps, and threads that encode between passes.
        fetching: Its KV, while another thread reads or encodes it.
        missing_keys: Keys of KV that was not in memory at the last look.
    """

    request: Request
    listener: Listener
    settings: SamplingSettings | None
    generator: torch.Generator
    is_seeded: bool
    criteria: Sequence[Callable[..., Any]]
    ends: tuple[int, ...]
    submitted: float = field(default_factory=time.perf_counter)
    is_cancelled: bool = False
    fetching: Future[Fetched] | None = None
    missing_keys: frozenset[str] = frozenset()
    fetched: Fetched | None = None
    recalled: Recalled | None = None
    row: Row | None = None
    seen_ids: torch.Tensor = field(default_factory=partial(torch.empty, (1, 0), dtype=torch.long))
    pending: deque[int] = field(default_factory=deque)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    fetched_at: float = 0.0
    joined_at: float = 0.0
    first_token_at: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer that the request may add."""
        return self.request.plan.num_new_tokens + self.request.max_new_tokens

    @property
    def seen(self) -> torch.Tensor:
        """All tokens of prompt and answer so far, a view `[1, T]`; empty if nothing reads them."""
        return self.seen_ids[:, : self.seen_ids.shape[1] - self.request.max_new_tokens + len(self.token_ids)]

    @property
    def reads_tokens(self) -> bool:
        """Whether a penalty or a criterion reads the tokens."""
        return bool(self.criteria) or (self.settings is not None and self.settings.repetition_penalty != 1.0)

    @property
    def reserved(self) -> int:
        """Tokens that are reserved for it."""
        return reserved_tokens(self.request.plan.num_new_tokens, self.request.max_new_tokens)


class Scheduler:
    """Waiting and running requests of one model. Not thread-safe, except for `add`.

    Attributes:
        num_failed: Forward passes that failed since the last one that did not.
    """

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
        self._batch = Batch(executor.model, executor.pool) if executor.model.linking.takes_rows else None
        self._waiting: deque[Job] = deque()
        self._fetching: deque[Job] = deque()
        self._running: list[Job] = []
        self._threads = ThreadPoolExecutor(min(limits.max_rows, _MAX_THREADS), "promptcache-fetch")
        self.num_failed = 0

    @property
    def num_waiting(self) -> int:
        """Number of requests that have not joined."""
        return len(self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of these, prompt and answer."""
        return sum(job.num_tokens for job in tuple(self._waiting))

    @property
    def num_running(self) -> int:
        """Number of requests that are fetched, prefilled or decoded."""
        return len(self._fetching) + len(self._running)

    @property
    def tail_bytes(self) -> int:
        """Bytes of KV of the running requests' own tokens."""
        return 0 if self._batch is None else self._batch.tails.nbytes

    def job(self, request: Request, listener: Listener, seed: int | None = None, num_drawn: int = 0) -> Job:
        """Return a job for `add`.

        Args:
            seed: Seed of the random generator; None draws one from the random state of torch.
            num_drawn: Number of tokens that were drawn with this seed before.
        """
        (job,) = self.jobs([request], [listener], seed)
        if job.settings is None or job.settings.temperature:
            for _ in range(num_drawn):
                draw(job.generator)
        return job

    def jobs(
        self, requests: Sequence[Request], listeners: Sequence[Listener], seed: int | None = None
    ) -> tuple[Job, ...]:
        """Return jobs for `add`, as `job`, of requests with the same options. Criteria are made once for all."""
        model = self._executor.model
        options = dict(requests[0].options)
        criteria = pop_stopping_criteria(options, model)
        ends = end_ids(options, requests[0].eos_ids)
        settings = None if self._batch is None else sampling_settings(options, model, ends)
        return tuple(
            Job(
                request=request,
                listener=listener,
                settings=settings,
                generator=_generator(settings, seed),
                is_seeded=seed is not None,
                criteria=criteria,
                ends=ends,
            )
            for request, listener in zip(requests, listeners, strict=True)
        )

    def add(self, job: Job) -> None:
        """Let a job wait. Any thread may call this."""
        self._waiting.append(job)

    def step(self) -> bool:
        """Do the next piece of work; return False if there is nothing to do."""
        if not (self._waiting or self._fetching or self._running):
            return False
        with self._executor.activity:
            self._drop()
            self._admit()
            busy = self._fetch()
            return self._compute() or busy or bool(self._waiting)

    def fail_all(self, error: BaseException) -> None:
        """End all jobs with an error. The scheduler is not used again."""
        for job in (*self._waiting, *self._fetching, *self._running):
            job.is_cancelled = True
            _tell(job, error)
        for job in self._running:
            if self._batch is not None and job.row is not None:
                self._batch.leave(job.row)
        self._waiting.clear()
        self._fetching.clear()
        self._running.clear()
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
            if job.settings is None:
                self._answer_alone(job)
            else:
                job.request = begun(job.request, self._executor)
                self._fetching.append(job)

    def _fetch(self) -> bool:
        """Fetch the KV of admitted jobs, and let those join that have all of it."""
        for job in tuple(self._fetching):
            try:
                if job.fetching is None:
                    self._begin_fetch(job)
                elif job.fetching.done():
                    fetched, job.fetching = job.fetching.result(), None
                    if fetched.state == self._executor.follow():
                        self._join(job, fetched)
            except Exception as error:  # noqa: BLE001 - passed to the request's listener
                self._end(job, error)
        if self._fetches_first or not self._running:
            wait([job.fetching for job in self._fetching if job.fetching is not None], _LOOK_S, FIRST_COMPLETED)
        return bool(self._fetching)

    def _begin_fetch(self, job: Job) -> None:
        """Fetch the KV of a job. What is not in memory is read or encoded by another thread, so that rows go on.

        A job waits while some of its KV is fetched for another one.
        """
        fetched = [each.missing_keys for each in self._fetching if each.fetching is not None]
        if not all(map(job.missing_keys.isdisjoint, fetched)):
            return
        wanted = [part.encoding for part in job.request.plan.tokens.parts]
        job.missing_keys = self._executor.absent(wanted)
        if not job.missing_keys:
            self._join(job, self._executor.fetch(wanted))
        elif all(map(job.missing_keys.isdisjoint, fetched)):
            fetch = partial(self._executor.fetch, wanted, partial(_check_cancelled, job))
            job.fetching = self._threads.submit(fetch)

    def _join(self, job: Job, fetched: Fetched) -> None:
        assert self._batch is not None
        self._fetching.remove(job)
        job.fetched, job.fetched_at = fetched, time.perf_counter()
        tokens = job.request.plan.tokens
        if job.reads_tokens:
            seen_ids = [*tokens.used_ids, *[0] * job.request.max_new_tokens]
            job.seen_ids = token_tensor(seen_ids, self._executor.model.device)
        job.recalled = self._executor.recall(tokens, job.request.salt, fetched.state) if job.request.history else None
        job.row = self._batch.join(tokens, fetched.runs, fetched.state, job.recalled)
        job.pending.extend(job.row.tokens.token_ids)
        job.joined_at = time.perf_counter()
        self._running.append(job)

    def _compute(self) -> bool:
        """Compute one step: a token of each decoding row, then parts of prompts."""
        if not self._running or self._batch is None or (self._fetches_first and self._fetching):
            return False
        work: list[tuple[Job, list[int]]] = [(job, job.token_ids[-1:]) for job in self._running if not job.pending]
        room = self._limits.step_tokens if work else CHUNK_TOKENS
        for job in self._running:
            if job.pending and room > 0:
                chunk = [job.pending.popleft() for _ in range(min(room, len(job.pending)))]
                work.append((job, chunk))
                room -= len(chunk)
        started = time.perf_counter()
        try:
            logits = self._batch.step([(_row(job), chunk) for job, chunk in work])
        except Exception as error:  # noqa: BLE001 - passed to the listeners of the step's requests
            self.num_failed += 1
            self._fail([job for job, _ in work], error)
            return True
        self.num_failed = 0
        ready = [(index, job) for index, (job, _) in enumerate(work) if not job.pending]
        try:
            if ready:
                chosen = torch.tensor([index for index, _ in ready], device=logits.device)
                self._choose(logits[chosen], [job for _, job in ready])
        except Exception as error:  # noqa: BLE001 - passed to the listeners of the sampled requests
            self._fail([job for _, job in ready], error)
            return True
        self._observer.stepped(time.perf_counter() - started, len(work))
        return True

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """End the jobs of a step that failed; some of them may have ended in it."""
        self._observer.step_failed()
        for job in jobs:
            if job.row is not None:
                self._end(job, error)

    def _choose(self, logits: torch.Tensor, jobs: Sequence[Job]) -> None:
        """Sample the next token of each job from the logits `[R, V]`."""
        is_finite = has_finite_logits(logits)
        if not is_finite.all():
            good = is_finite.tolist()
            for job in compress(jobs, [not each for each in good]):
                self._end(job, self._executor.model.not_finite("the logits of this request"))
            jobs, logits = [*compress(jobs, good)], logits[is_finite]
            if not jobs:
                return
        rows = [
            SampledRow(settings=_settings(job), generator=job.generator, seen=job.seen[0], num_new=len(job.token_ids))
            for job in jobs
        ]
        for index, (job, token_id) in enumerate(zip(jobs, sample(logits, rows), strict=True)):
            if token_id < 0:
                self._end(job, InvalidGeneration("under these options, no token has a probability above 0"))
                continue
            if job.request.logprobs is not None:
                job.logprobs.append(token_logprobs(logits[index], token_id, job.request.logprobs))
            self._take(job, token_id, logits[index : index + 1])

    def _take(self, job: Job, token_id: int, scores: torch.Tensor) -> None:
        """Add a token to the answer of a job, and end it if the answer is complete."""
        job.first_token_at = job.first_token_at or time.perf_counter()
        job.token_ids.append(token_id)
        if job.reads_tokens:
            job.seen[0, -1] = token_id
        try:
            job.listener(token_id if job.request.logprobs is None else job.logprobs[-1])
            stopped = any(bool(torch.as_tensor(each(job.seen, scores)).all()) for each in job.criteria)
        except Exception as error:  # noqa: BLE001 - an error of the caller's code ends its request only
            self._end(job, error)
            return
        ended = token_id in job.ends or stopped
        if ended or len(job.token_ids) >= job.request.max_new_tokens:
            self._end(job, self._completed(job, ended))

    def _completed(self, job: Job, ended: bool) -> Completion:
        assert job.fetched is not None
        now, request = time.perf_counter(), job.request
        kept_bytes = self._keep(job)
        found = 0 if job.recalled is None else job.recalled.num_found
        timing = Timing(
            plan_s=job.submitted - request.started,
            fetch_s=job.fetched_at - job.submitted,
            link_s=job.joined_at - job.fetched_at,
            prefill_s=job.first_token_at - job.joined_at,
            decode_s=now - job.first_token_at,
        )
        made = completion(
            request,
            job.fetched,
            OwnKVUsage(found, _row(job).num_copied * self._executor.model.shape.token_bytes, kept_bytes),
            (tuple(job.token_ids),),
            ended,
            timing,
            None,
        )
        return made if request.logprobs is None else replace(made, logprobs=tuple(job.logprobs))

    def _keep(self, job: Job) -> int:
        """Copy what a job has computed to history; return the bytes."""
        if self._batch is None or job.row is None or job.row.num_own == 0:
            return 0
        own = self._batch.own_kv(job.row)
        return self._executor.keep(job.recalled, job.token_ids, tuple(zip(own.keys, own.values, strict=True)))

    def _end(self, job: Job, result: Completion | BaseException) -> None:
        """Remove a job and pass the result to its listener."""
        if isinstance(result, BaseException):
            self._keep(job)
        if job in self._fetching:
            self._fetching.remove(job)
            if job.fetching is not None:
                job.fetching.cancel()
        if job in self._running:
            self._running.remove(job)
        if job.row is not None and self._batch is not None:
            self._batch.leave(job.row)
            job.row = None
        _tell(job, result)

    def _answer_alone(self, job: Job) -> None:
        try:
            with SeededDraws(job.generator) if job.is_seeded else nullcontext():
                made = answer(_with_listener(job, self._executor), self._executor)
            self._end(job, Cancelled("the request was cancelled") if job.is_cancelled else made)
        except Exception as error:  # noqa: BLE001 - passed to the request's listener
            self._end(job, error)


class _ListeningStreamer:
    """A streamer that passes tokens on; the prompt's tokens come first and are dropped."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            for token_id in value.reshape(-1).tolist():
                self._listener(token_id)
        self._prompt_seen = True

    def end(self) -> None:
        pass


def _with_listener(job: Job, executor: Executor) -> Request:
    """Return a job's request that passes its tokens on, if they come one by one, and stops when it is cancelled."""

    def is_cancelled(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), job.is_cancelled, dtype=torch.bool, device=input_ids.device)

    request = job.request
    options: dict[str, Any] = dict(request.options)
    options["stopping_criteria"] = [*(options.get("stopping_criteria") or ()), is_cancelled]
    rows = max(number_of(name, options, executor.model) for name in ("num_beams", "num_return_sequences"))
    if rows == 1 and request.logprobs is None and options.get("streamer") is None:
        options["streamer"] = _ListeningStreamer(job.listener)
    return replace(request, options=options)


def _tell(job: Job, result: Completion | BaseException) -> None:
    """Pass the result to a job's listener. An error of the listener concerns no other job."""
    try:
        job.listener(result)
    except Exception:  # noqa: BLE001 - code of the caller
        _log.exception("a listener raised an error when its request ended")


def _check_cancelled(job: Job, num_done: int, num_all: int) -> None:
    """End the fetch of a cancelled job between two forward passes."""
    if job.is_cancelled:
        raise Cancelled("the request was cancelled")


def _row(job: Job) -> Row:
    assert job.row is not None, "a running job has a row"
    return job.row


def _settings(job: Job) -> SamplingSettings:
    assert job.settings is not None, "a running job has settings"
    return job.settings


def _generator(settings: SamplingSettings | None, seed: int | None) -> torch.Generator:
    """Return a random generator. Greedy decoding draws no seed, so it leaves the random state of torch as it is."""
    generator = torch.Generator()
    if seed is None and settings is not None and settings.temperature:
        seed = int(torch.randint(2**62, ()))
    return generator if seed is None else generator.manual_seed(seed)


def _timeout(waited_s: float) -> QueueTimeout:
    return QueueTimeout(f"the request waited {waited_s:.0f} s for other requests; try again later")
