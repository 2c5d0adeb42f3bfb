"""Answer one request, or a batch of requests. A service answers requests that arrive at any time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from promptcache.diagnostics import Cancelled
from promptcache.runtime.answer import answer_by_transformers
from promptcache.runtime.completion import Completion
from promptcache.runtime.encode import CHUNK_TOKENS
from promptcache.runtime.executor import Executor
from promptcache.runtime.logprobs import TokenLogprobs
from promptcache.runtime.request import Request, begun
from promptcache.runtime.serving.admission import ServiceLimits
from promptcache.runtime.serving.decoder import Decoder
from promptcache.runtime.serving.job import jobs_of
from promptcache.runtime.serving.scheduler import Scheduler
from promptcache.runtime.serving.seeded_draws import draws_of


def answer(
    request: Request,
    executor: Executor,
    on_token: Callable[[int], object] | None = None,
    is_cancelled: Callable[[], bool] | None = None,
) -> Completion:
    """Answer one request.

    Args:
        on_token: Gets each generated token. The request has one sequence and no streamer.
        is_cancelled: Read between two tokens; if it is true, the request ends.

    Raises:
        Cancelled: The request was cancelled.
        The error of the request.
    """
    results: list[Completion | BaseException] = []

    def listen(item: int | TokenLogprobs | Completion | BaseException) -> None:
        if isinstance(item, Completion | BaseException):
            results.append(item)
        elif on_token is not None:
            on_token(item.token_id if isinstance(item, TokenLogprobs) else item)

    with executor.activity:
        (job,) = jobs_of([begun(request, executor)], [listen], executor)
        if job.settings is None:
            with draws_of(job):
                return answer_by_transformers(job.request, executor, on_token, is_cancelled)
        decoder = Decoder(executor)
        try:
            decoder.join(job, executor.fetch(part.encoding for part in job.request.plan.tokens.parts))
            while not results:
                if is_cancelled is not None and is_cancelled():
                    raise Cancelled("the request was cancelled")
                decoder.step()
        except BaseException as error:
            decoder.end(job, error)
            raise
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


def answer_batch(requests: Sequence[Request], executor: Executor, batch_bytes: int) -> tuple[Completion, ...]:
    """Answer planned requests together, and return their completions in order.

    Each is answered alone if rows of a batch do not support the options.

    Args:
        requests: All have the same options.
        batch_bytes: Limit of the KV that running requests add themselves. One request always fits.

    Raises:
        The first error of any request. The others are ended.
    """
    if not requests:
        return ()
    completions: dict[int, Completion] = {}
    errors: list[BaseException] = []

    def listen(index: int, item: int | TokenLogprobs | Completion | BaseException) -> None:
        if isinstance(item, Completion):
            completions[index] = item
        elif isinstance(item, BaseException):
            errors.append(item)

    jobs = jobs_of(requests, [partial(listen, index) for index in range(len(requests))], executor)
    if jobs[0].settings is None:
        return tuple(answer(request, executor) for request in requests)
    limits = ServiceLimits(
        max_rows=len(requests),
        step_tokens=CHUNK_TOKENS,
        tail_bytes=batch_bytes,
        queue_timeout_s=sys.float_info.max,
    )
    scheduler = Scheduler(executor, limits, fetches_first=True)
    for job in jobs:
        scheduler.add(job)
    try:
        while scheduler.step() and not errors:
            pass
        if errors:
            raise errors[0]
    finally:  # after an error or an interrupt
        scheduler.fail_all(Cancelled("another request of the batch failed"))
    return tuple(completions[index] for index in range(len(requests)))
