"""A batch of requests that are known beforehand: a scheduler gets all of them, and steps until all are answered."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from promptcache.diagnostics import Cancelled
from promptcache.runtime.answer import answer
from promptcache.runtime.completion import Completion
from promptcache.runtime.encode import CHUNK_TOKENS
from promptcache.runtime.executor import Executor
from promptcache.runtime.logprobs import TokenLogprobs
from promptcache.runtime.request import Request
from promptcache.runtime.serving.admission import ServiceLimits
from promptcache.runtime.serving.scheduler import Scheduler


def answer_batch(requests: Sequence[Request], executor: Executor, batch_bytes: int) -> tuple[Completion, ...]:
    """Answer planned requests together, and return their completions in order.

    They are answered one after another if the model links by concatenation, or if no row can express the options.

    Args:
        requests: All have the same options.
        batch_bytes: Limit of the KV that running requests add themselves. One request always fits.

    Raises:
        The first error of any request. The others are ended.
    """
    if not requests:
        return ()
    limits = ServiceLimits(
        max_rows=len(requests),
        step_tokens=CHUNK_TOKENS,
        tail_bytes=batch_bytes,
        queue_timeout_s=sys.float_info.max,
    )
    scheduler = Scheduler(executor, limits, fetches_first=True)
    completions: dict[int, Completion] = {}
    errors: list[BaseException] = []

    def listen(index: int, item: int | TokenLogprobs | Completion | BaseException) -> None:
        if isinstance(item, Completion):
            completions[index] = item
        elif isinstance(item, BaseException):
            errors.append(item)

    jobs = scheduler.jobs(requests, [partial(listen, index) for index in range(len(requests))])
    if jobs[0].settings is None:
        return tuple(answer(request, executor) for request in requests)
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
