"""The decoder: requests join with their KV, are prefilled and decoded step by step, and leave."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import compress

import torch

from promptcache.answers import Mask, masked, token_logprobs
from promptcache.attention import to_device
from promptcache.decode.completion import Completion, Timing, completion
from promptcache.decode.job import Job
from promptcache.decode.sampling import SampledRow, change_logits_, sample
from promptcache.diagnostics import InvalidGeneration, ModelChanged
from promptcache.encode import CHUNK_TOKENS, Executor, Prepared
from promptcache.model import token_tensor
from promptcache.rows import Batch, Row, has_finite_logits


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
        running: The jobs, in the order in which they joined.
        num_failed: Number of forward passes that failed since the last successful one.
    """

    def __init__(self, executor: Executor, observer: ServiceObserver | None = None) -> None:
        """Create a decoder without jobs.

        Args:
            executor: Its model links in segments.
            observer: Gets the times of steps.
        """
        self.running: list[Job] = []
        self.num_failed = 0
        self._executor = executor
        self._observer = observer or ServiceObserver()
        self._batch = Batch(executor.model, executor.copies, executor.graphs)

    @property
    def tail_bytes(self) -> int:
        """Bytes of KV of the running requests' own tokens."""
        return self._batch.tails.nbytes

    def join(self, job: Job, prepared: Prepared) -> None:
        """Add a job whose plan has its KV. Nothing is computed."""
        job.prepared, job.prepared_at = prepared, time.perf_counter()
        tokens = prepared.plan.tokens
        if job.reads_tokens:
            seen_ids = [*tokens.used_ids, *[0] * job.request.max_new_tokens]
            job.seen_ids = token_tensor(seen_ids, self._executor.model.device)
        if (streamer := job.request.options.streamer) is not None:
            streamer.put(torch.tensor([tokens.used_ids]))
        job.row = self._batch.join(tokens, prepared.fetched.kv_of, prepared.recalled)
        job.pending.extend(job.row.tokens.token_ids)
        job.joined_at = time.perf_counter()
        self.running.append(job)

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
            logits = self._batch.step([(_row(job), chunk) for job, chunk in work])
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
        if job.row is not None:
            self.running.remove(job)
            self._batch.leave(job.row)
            job.row = None
        job.tell(result)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """End the jobs of a step that failed; some of them may have ended in it."""
        self._observer.step_failed()
        for job in tuple(jobs):
            if job.row is not None:
                self.end(job, error)

    def _choose(self, logits: torch.Tensor, jobs: Sequence[Job]) -> None:
        """Sample the next token of each job from the logits `[R, V]`."""
        masks, good, processed = list[Mask | None](), list[bool](), dict[int, torch.Tensor]()
        for index, (job, is_finite) in enumerate(zip(jobs, has_finite_logits(logits).tolist(), strict=True)):
            try:
                if not is_finite and not job.request.options.remove_invalid_values:
                    raise self._executor.model.not_finite("the logits of this request")
                mask = None if job.matcher is None else job.matcher.mask()
                if job.processors:
                    processed[len(masks)] = _processed(job, masked(logits[index : index + 1], [mask]))
                masks.append(None if job.processors else mask)
            except Exception as error:  # noqa: BLE001 - an error of the caller's code ends its request only
                self.end(job, error)
                good.append(False)
            else:
                good.append(True)
        if not all(good):
            jobs, logits = [*compress(jobs, good)], logits[torch.tensor(good, device=logits.device)]
            if not jobs:
                return
        scores = masked(logits, masks)
        if processed:
            dtype = torch.promote_types(scores.dtype, torch.float32)
            scores = torch.stack([processed.get(row, each).to(dtype) for row, each in enumerate(scores)])
        rows = [
            SampledRow(
                options=job.sampling,
                generator=job.generator,
                seen=job.seen[0],
                num_new=len(job.token_ids),
            )
            for job in jobs
        ]
        for index, (job, token_id) in enumerate(zip(jobs, sample(scores, rows), strict=True)):
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
        if is_complete:
            self._complete(job, ended)

    def _complete(self, job: Job, ended: bool) -> None:
        prepared = job.prepared
        assert prepared is not None, "a running job is prepared"
        try:
            self._executor.model.check_unchanged()
        except ModelChanged as error:
            self.end(job, error)
            return
        now, request = time.perf_counter(), job.request
        kept_bytes = self._keep(job)
        prepare_s = prepared.refine_s + prepared.fetch_s + prepared.fetched.encode_s + prepared.choose_s
        timing = Timing(
            plan_s=job.planned - request.started,
            wait_s=max(0.0, job.prepared_at - job.submitted - prepare_s),
            refine_s=prepared.refine_s,
            fetch_s=prepared.fetch_s,
            encode_s=prepared.fetched.encode_s,
            choose_s=prepared.choose_s,
            link_s=job.joined_at - job.prepared_at,
            prefill_s=job.first_token_at - job.joined_at,
            decode_s=now - job.first_token_at,
        )
        made = completion(
            request,
            prepared,
            tuple(job.token_ids),
            ended=ended,
            timing=timing,
            logprobs=None if request.options.logprobs is None else tuple(job.logprobs),
            copied_bytes=_row(job).num_copied * self._executor.model.shape.token_bytes,
            kept_bytes=kept_bytes,
        )
        self.end(job, made)

    def _keep(self, job: Job) -> int:
        """Copy the KV that a job has computed to history; return the number of bytes."""
        if job.row is None or job.row.num_own == 0:
            return 0
        own = self._batch.own_kv(job.row)
        recalled = None if job.prepared is None else job.prepared.recalled
        return self._executor.keep(recalled, job.token_ids, tuple(zip(own.keys, own.values, strict=True)))


def _row(job: Job) -> Row:
    assert job.row is not None, "a running job has a row"
    return job.row


def _processed(job: Job, scores: torch.Tensor) -> torch.Tensor:
    """Return the scores `[V]` of the next token after the changes and processors of a job, from `[1, V]`."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32), copy=True)
    answer = job.seen[0, job.seen.shape[1] - len(job.token_ids) :]
    change_logits_(scores[0], answer, job.request.options)
    for processor in job.processors:
        scores = processor(job.seen, scores)
    return scores[0]
