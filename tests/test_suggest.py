"""Suggestions for mistyped names."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import did_you_mean, num_slips, suggest

WORDS = st.text("abc", max_size=6)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *(("maimi", "miami"), ("aprt", "part"), ("tow", "two"), ("POLICY", "policy"), ("duratoin", "duration")),
        *(("polcy", "policy"), ("miammi", "miami"), ("duration", "trip-duration")),
        *((typed, None) for typed in ("xyz", "z", "", "qqqqqq")),  # a wrong suggestion is worse than none
    ],
)
def test_slips_are_seen_through(typed: str, meant: str | None) -> None:
    """Neighbouring letters that are swapped count as one slip, case as none, and a part of a name is near enough."""
    known = ["art", "top", "miamis", "maine", "policies", "ab", *([meant] if meant else [])]
    assert suggest(typed, known) == meant
    assert did_you_mean(typed, known) == (None if meant is None else f"did you mean {meant!r}?")


@given(WORDS, WORDS)
def test_slips_are_counted_as_the_definition_says(first: str, second: str) -> None:
    """The number of slips is the optimal string alignment distance, as its recursion defines it."""
    assert num_slips(first, second) == num_slips(second, first) == alignment(first, second)


@cache
def alignment(first: str, second: str) -> int:
    """The distance by its definition."""
    if not first or not second:
        return len(first) + len(second)
    options = [
        alignment(first[:-1], second) + 1,
        alignment(first, second[:-1]) + 1,
        alignment(first[:-1], second[:-1]) + (first[-1] != second[-1]),
    ]
    if len(first) > 1 < len(second) and first[-2:] == second[-1] + second[-2]:
        options.append(alignment(first[:-2], second[:-2]) + 1)
    return min(options)
