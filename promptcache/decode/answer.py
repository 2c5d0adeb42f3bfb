"""Answer requests together. A service answers requests that arrive at any time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from promptcache.answers import TokenLogprobs
from promptcache.decode.completion import Completion
from promptcache.decode.job import job_of
from promptcache.decode.request import Request
from promptcache.decode.scheduler import Scheduler
from promptcache.diagnostics import BYTES_ABOVE_0, Cancelled, InvalidValue
from promptcache.encode import CHUNK_TOKENS, Executor
from promptcache.settings import ServiceLimits

DEFAULT_BATCH_BYTES = 2**30
"""Default limit of the KV of own tokens in one batch."""


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
    limits = ServiceLimits(
        max_rows=len(rows),
        step_tokens=CHUNK_TOKENS,
        tail_bytes=batch_bytes,
        queue_timeout_s=sys.float_info.max,
    )
    jobs = [job_of(row, partial(listen, index), executor) for index, row in enumerate(rows)]
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
    made = iter([completions[index] for index in range(len(rows))])
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
