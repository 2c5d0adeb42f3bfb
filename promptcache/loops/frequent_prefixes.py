"""Prefixes that several token lists share, ranked by the prefill that their KV saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from promptcache.diagnostics import InvalidValue, Short, shown, whole
from promptcache.layout import num_shared

DEFAULT_MIN_TOKENS = 32
"""Default of the fewest tokens of a frequent prefix."""

_MIN_TOKENS = whole(1, unit="tokens")
_MIN_LISTS = whole(2, unit="lists")
_MAX_PREFIXES = whole(1, unit="prefixes") | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FrequentPrefix(Short):
    """Tokens that several token lists begin with.

    Attributes:
        token_ids: The prefix.
        num_lists: How many lists begin with it.
        num_saved_tokens: Tokens that need no prefill if its KV is computed once: those behind the longest shorter
            frequent prefix, for each list but the first.
    """

    token_ids: tuple[int, ...]
    num_lists: int
    num_saved_tokens: int


def frequent_prefixes(
    token_lists: Sequence[Sequence[int]],
    *,
    min_tokens: int = DEFAULT_MIN_TOKENS,
    min_lists: int = 2,
    max_prefixes: int | None = None,
) -> tuple[FrequentPrefix, ...]:
    """Return the longest common prefixes of all groups of token lists, those that save most first.

    Each token has KV of the same size, so this is the order of the bytes saved. The last token of a list is always
    computed, and counts in no prefix.

    Args:
        token_lists: Token IDs, such as those of the prompts of a data set.
        min_tokens: The fewest tokens of a prefix.
        min_lists: The fewest lists that begin with it.
        max_prefixes: The most prefixes to return; None returns all.

    Raises:
        InvalidValue: The lists are not lists of token IDs, or a limit is not allowed.
    """
    _MIN_TOKENS.check("min_tokens", min_tokens, InvalidValue)
    _MIN_LISTS.check("min_lists", min_lists, InvalidValue)
    _MAX_PREFIXES.check("max_prefixes", max_prefixes, InvalidValue)
    if not isinstance(token_lists, list | tuple):
        raise InvalidValue(f"token_lists={shown(token_lists)} is not allowed: a list of lists of token IDs is expected")
    for index, each in enumerate(token_lists):
        if not isinstance(each, list | tuple) or not all(type(token_id) is int for token_id in each):
            raise InvalidValue(f"token_lists[{index}]={shown(each)} is not allowed: a list of token IDs is expected")
    ordered = sorted(tuple(each[:-1]) for each in token_lists)
    found = (
        FrequentPrefix(
            token_ids=ordered[first][:num_tokens],
            num_lists=stop - first,
            num_saved_tokens=(num_tokens - num_above) * (stop - first - 1),
        )
        for num_tokens, num_above, first, stop in _branches(ordered, min_tokens)
        if stop - first >= min_lists
    )
    return tuple(sorted(found, key=lambda each: -each.num_saved_tokens)[:max_prefixes])


def _branches(ordered: Sequence[Sequence[int]], min_tokens: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the branches of a radix tree over sorted lists, deeper ones first.

    Each is a number of tokens, that of the branch above, and the lists `[first, stop)` that share these tokens.
    """
    opened: list[tuple[int, int]] = []  # number of tokens, first list
    depths = [num_shared(first, second) for first, second in pairwise(ordered)]
    for stop, depth in enumerate([*(each if each >= min_tokens else 0 for each in depths), 0], start=1):
        first = stop - 1
        while opened and opened[-1][0] > depth:
            num_tokens, first = opened.pop()
            yield num_tokens, max(depth, opened[-1][0] if opened else 0), first, stop
        if depth and (not opened or opened[-1][0] < depth):
            opened.append((depth, first))
