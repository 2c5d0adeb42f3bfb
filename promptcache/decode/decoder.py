"""The decoder: requests join with their KV, are prefilled and decoded step by step, and leave."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence

import torch

from promptcache.answers import Mask, masked, token_logprobs
from promptcache.attention import to_device
from promptcache.decode.completion import Completion
from promptcache.decode.job import Job, completion_of
from promptcache.decode.sampling import change_logits_, sample
from promptcache.diagnostics import InvalidGeneration, ModelChanged
from promptcache.encode import CHUNK_TOKENS, Executor, Prepared
from promptcache.model import token_tensor
from promptcache.rows import Batch, Row

_log = logging.getLogger(__name__)


class ServiceObserver:
    """Receives figures of a service. A subclass overrides the methods that it needs, for any metrics library.

    The methods are called in the service's thread, in every step. They must return soon and raise nothing.
    """

    def admitted(self, waited_s: float) -> None:
        """Called with the time that a request waited until it was admitted."""

    def stepped(self, step_s: float, num_rows: int) -> None:
        """Called with the time of one step, sampling included, and the number of requests in it."""

    def step_failed(self) -> None:
        """Called after a step has failed; its requests end with an error."""


class Decoder:
    """The running requests of one model. Not thread-safe.

    Attributes:
        running: The jobs with their rows, in the order in which they joined.
        batch: Their rows share its forward passes.
        num_failed: Number of forward passes that failed since the last successful one.
    """

    def __init__(self, executor: Executor, observer: ServiceObserver | None = None) -> None:
        self.running: dict[Job, Row] = {}
        self.num_failed = 0
        self._executor = executor
        self._observer = observer or ServiceObserver()
        self.batch = Batch(executor.model, executor.copies, executor.graphs)

    def join(self, job: Job, prepared: Prepared) -> None:
        """Add a job whose plan has its KV. Nothing is computed."""
        job.prepared, job.prepared_at = prepared, time.perf_counter()
        tokens = prepared.plan.tokens
        if job.reads_tokens:
            seen_ids = [*tokens.used_ids, *[0] * job.request.max_new_tokens]
            job.seen_ids = token_tensor(seen_ids, self._executor.model.device)
        if (streamer := job.request.options.streamer) is not None:
            streamer.put(torch.tensor([tokens.used_ids]))
        row = self.batch.join(tokens, prepared.fetched.kv_of, prepared.recalled)
        job.pending.extend(row.tokens.token_ids)
        job.joined_at = time.perf_counter()
        self.running[job] = row

    def step(self, prompt_tokens: int = CHUNK_TOKENS) -> None:
        """Compute the next token of each decoding row, and parts of prompts. A job must be running.

        Args:
            prompt_tokens: Maximum number of prompt tokens, if a row decodes.
        """
        work: list[tuple[Job, list[int]]] = [(job, job.token_ids[-1:]) for job in self.running if not job.pending]
        room = prompt_tokens if work else CHUNK_TOKENS
        for job in self.running:
            if job.pending and room > 0:
                chunk = [job.pending.popleft() for _ in range(min(room, len(job.pending)))]
                work.append((job, chunk))
                room -= len(chunk)
        started = time.perf_counter()
        try:
            logits = self.batch.step([(self.running[job], chunk) for job, chunk in work])
        except ModelChanged as error:
            self._fail(self.running, error)
            return
        except Exception as error:  # noqa: BLE001 - passed to the listeners of the step's requests
            self.num_failed += 1
            self._fail([job for job, _ in work], error)
            return
        self.num_failed = 0
        ready = [(index, job) for index, (job, _) in enumerate(work) if not job.pending]
        try:
            if ready:
                chosen = to_device(torch.tensor([index for index, _ in ready]), logits.device)
                self._choose(logits[chosen], [job for _, job in ready])
        except Exception as error:  # noqa: BLE001 - passed to the listeners of the sampled requests
            self._fail([job for _, job in ready], error)
            return
        self._observer.stepped(time.perf_counter() - started, len(work))

    def end(self, job: Job, result: Completion | BaseException) -> None:
        """Remove a job, running or not, and pass the result to its listener. History keeps the KV that it computed."""
        if isinstance(result, BaseException):
            self._keep(job)
        row = self.running.pop(job, None)
        if row is not None:
            self.batch.leave(row)
        try:
            job.listener(result)
        except Exception:  # noqa: BLE001 - code of the caller, whose errors affect no other job
            _log.exception("a listener raised an error when its request ended")

    def _fail(self, jobs: Iterable[Job], error: Exception) -> None:
        """End the jobs of a step that failed; some of them may have ended in it."""
        self._observer.step_failed()
        for job in tuple(jobs):
            if job in self.running:
                self.end(job, error)

    def _choose(self, logits: torch.Tensor, jobs: Sequence[Job]) -> None:
        """Sample the next token of each job from the logits `[R, V]`."""
        good, masks, processed = list[int](), list[Mask | None](), dict[int, torch.Tensor]()
        are_finite = (logits.amax(-1) < math.inf).tolist()  # minus infinity is allowed; the largest with a NaN is NaN
        for index, (job, is_finite) in enumerate(zip(jobs, are_finite, strict=True)):
            try:
                if not is_finite and not job.request.options.remove_invalid_values:
                    raise self._executor.model.not_finite("the logits of this request")
                mask = None if job.matcher is None else job.matcher.mask()
                if job.processors:
                    processed[len(good)] = _processed(job, masked(logits[index : index + 1], [mask]))
                    mask = None
            except Exception as error:  # noqa: BLE001 - an error of the caller's code ends its request only
                self.end(job, error)
            else:
                good.append(index)
                masks.append(mask)
        if not good:
            return
        if len(good) < len(jobs):
            jobs, logits = [jobs[index] for index in good], logits[torch.tensor(good, device=logits.device)]
        scores = masked(logits, masks)
        if processed:
            dtype = torch.promote_types(scores.dtype, torch.float32)
            scores = torch.stack([processed.get(row, each).to(dtype) for row, each in enumerate(scores)])
        for index, (job, token_id) in enumerate(zip(jobs, sample(scores, jobs), strict=True)):
            if token_id < 0:
                self.end(job, InvalidGeneration("under these options, no token has a probability above 0"))
                continue
            if (num_top := job.request.options.logprobs) is not None:
                job.logprobs.append(token_logprobs(logits[index], token_id, num_top))
            self._take(job, token_id, logits[index : index + 1])

    def _take(self, job: Job, token_id: int, scores: torch.Tensor) -> None:
        """Add a token to the answer of a job, and end it if the answer is complete."""
        options = job.request.options
        job.first_token_at = job.first_token_at or time.perf_counter()
        job.token_ids.append(token_id)
        if job.matcher is not None:
            job.matcher.add(token_id)
        if job.reads_tokens:
            job.seen[0, -1] = token_id
        try:
            job.listener(token_id if options.logprobs is None else job.logprobs[-1])
            if options.streamer is not None:
                options.streamer.put(torch.tensor([token_id]))
            stopped = any(bool(torch.as_tensor(each(job.seen, scores)).all()) for each in job.criteria)
            ended = token_id in options.end_ids or stopped
            is_complete = ended or len(job.token_ids) >= job.request.max_new_tokens
            if is_complete and options.streamer is not None:
                options.streamer.end()
        except Exception as error:  # noqa: BLE001 - an error of the caller's code ends its request only
            self.end(job, error)
            return
        if not is_complete:
            return
        model, ended_at = self._executor.model, time.perf_counter()
        try:
            model.check_unchanged()
        except ModelChanged as error:
            self.end(job, error)
            return
        kept_bytes, copied_bytes = self._keep(job), self.running[job].num_copied * model.shape.token_bytes
        self.end(
            job,
            completion_of(job, ended=ended, ended_at=ended_at, copied_bytes=copied_bytes, kept_bytes=kept_bytes),
        )

    def _keep(self, job: Job) -> int:
        """Copy the KV that a job has computed to history; return the number of bytes."""
        row = self.running.get(job)
        if row is None or row.num_own == 0 or job.prepared is None or job.prepared.recalled is None:
            return 0
        return self._executor.keep(job.prepared.recalled, job.token_ids, self.batch.own_kv(row))


def _processed(job: Job, scores: torch.Tensor) -> torch.Tensor:
    """Return the scores `[V]` of the next token after the changes and processors of a job, from `[1, V]`."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32), copy=True)
    change_logits_(scores[0], job, job.request.options)
    for processor in job.processors:
        scores = processor(job.seen, scores)
    return scores[0]
