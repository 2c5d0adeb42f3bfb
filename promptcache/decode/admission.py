"""Admission: the number of waiting requests that may join the running ones."""

from __future__ import annotations

from collections.abc import Iterable

from promptcache.rows import tail_size


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
