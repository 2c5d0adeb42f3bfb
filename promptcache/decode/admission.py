"""Admission: limits of a service, and the number of waiting requests that may join the running ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from promptcache.diagnostics import ABOVE_0, BYTES_ABOVE_0, InvalidValue, whole
from promptcache.encode import CHUNK_TOKENS
from promptcache.rows import tail_size

_KINDS = {
    "max_rows": whole(1, unit="rows"),
    "step_tokens": whole(1, CHUNK_TOKENS, unit="tokens"),
    "tail_bytes": BYTES_ABOVE_0,
    "max_waiting": whole(1, unit="requests"),
    "max_waiting_tokens": whole(1, unit="tokens"),
    "queue_timeout_s": ABOVE_0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Limits of a service.

    Attributes:
        max_rows: Requests that are computed together.
        step_tokens: Tokens of prompts in one forward pass while other requests decode. More tokens prefill faster and
            delay the others more.
        tail_bytes: Memory for the KV that running requests add themselves. It is reserved for whole answers, so no
            running request lacks memory. Slabs double when they grow, so up to twice as much is allocated.
        max_waiting: Requests that may wait; more are refused.
        max_waiting_tokens: Tokens of all waiting requests, prompt and answer.
        queue_timeout_s: Seconds that a request may wait.

    Raises:
        InvalidValue: A limit is not a number of its kind.
    """

    max_rows: int = 32
    step_tokens: int = 64
    tail_bytes: int = 2**30
    max_waiting: int = 256
    max_waiting_tokens: int = 65_536
    queue_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            kind.check(name, getattr(self, name), InvalidValue)


def reserved_tokens(num_own: int, max_new_tokens: int) -> int:
    """Return the capacity of the tail of a whole request."""
    return tail_size(num_own + max_new_tokens)


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
