"""Suggests the known name that a mistyped name most likely means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

_MAX_SLIPS = 3
_MAX_LETTERS = 64  # longer names are not compared
_MAX_KNOWN = 200_000  # names
_MAX_STEPS = 40_000  # letter comparisons
_MAX_MATCHED = 200  # names compared by `difflib`


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
