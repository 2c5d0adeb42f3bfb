"""Words of messages: numbers, byte counts, lists of names, and the known name that a mistyped one most likely means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from itertools import islice

ROOT = "(root)"
"""Shown as the path of text outside modules."""

LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")

_MAX_SLIPS = 3
_MAX_LETTERS = 64  # longer names are not compared
_MAX_KNOWN = 200_000  # names
_MAX_STEPS = 40_000  # letter comparisons
_MAX_MATCHED = 200  # names compared by `difflib`


def plain_text(markdown: str) -> str:
    """Return Markdown without links and without the quotes of code."""
    return LINK.sub(r"\1", markdown).replace("`", "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 token", "2 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(nbytes: int) -> str:
    """Return a number of bytes with a binary unit: "4 KiB"."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:,.4g} GiB"


def millinats_text(nats: float) -> str:
    """Return nats as text in millinats, with one decimal."""
    return f"{round(1000 * nats, 1) + 0.0:.1f}"  # rounding gives no minus zero


def listed(names: Sequence[str], max_names: int) -> str:
    """Return names as a list; names after the first `max_names` are only counted."""
    rest = len(names) - max_names
    if rest <= 1:  # a single name is as short as its count
        return ", ".join(names)
    return f"{', '.join(names[:max_names])} and {rest:,} more"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to `name`, or None if none is near."""
    short = [each for each in islice(known, _MAX_KNOWN) if len(each) <= _MAX_LETTERS]
    if len(name) > _MAX_LETTERS:
        return None
    folded = {candidate.casefold(): candidate for candidate in reversed(short)}
    wanted = name.casefold()
    near = _nearest(wanted, folded)
    if near is None:
        matched = [*islice(folded, max(0, len(folded) - _MAX_MATCHED), None)]
        near = next(iter(difflib.get_close_matches(wanted, matched, n=1, cutoff=0.6)), None)
    return None if near is None else folded[near]


def _nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate with the fewest slips from `name`, at most one slip for every three letters.

    Ties prefer a candidate with the same letters, then the same first letter, then the nearest length.
    """
    best, least, steps = None, (_MAX_SLIPS + 1, True, True, 0), 0
    letters = set(name)
    for candidate in candidates:
        difference = abs(len(candidate) - len(name))
        limit = min(_MAX_SLIPS, max(len(candidate), len(name)) // 3, least[0])
        if difference > limit or len(letters.difference(candidate)) > limit:
            continue
        steps += len(name) * len(candidate)
        if steps > _MAX_STEPS:
            break
        slips = num_slips(name, candidate)
        rank = (slips, sorted(candidate) != sorted(name), candidate[:1] != name[:1], difference)
        if slips <= limit and rank < least:
            best, least = candidate, rank
    return best


def num_slips(first: str, second: str) -> int:
    """Return how many letters must be added, left out, replaced or swapped with their neighbour to get `second`.

    This is the optimal string alignment distance: Damerau-Levenshtein, with no letter edited twice. Common prefixes
    and suffixes are skipped.
    """
    start = next((at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if start is None:
        return abs(len(first) - len(second))
    first, second = first[start:], second[start:]
    while first and second and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    before, above = list[int](), list(range(len(second) + 1))
    for number, letter in enumerate(first, 1):
        here = [number]
        for column, other in enumerate(second, 1):
            slips = min(above[column] + 1, here[-1] + 1, above[column - 1] + (letter != other))
            if number > 1 < column and letter == second[column - 2] and other == first[number - 2]:
                slips = min(slips, before[column - 2] + 1)
            here.append(slips)
        before, above = above, here
    return above[-1]


def did_you_mean(name: str, known: Iterable[str], form: str = "'{}'") -> str | None:
    """Return "did you mean 'x'?" for the nearest known name, or None. `form` formats the name."""
    near = suggest(name, known)
    return f"did you mean {form.format(near)}?" if near is not None else None
