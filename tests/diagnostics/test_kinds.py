"""Kinds of values: accepted values, and the messages for others; suggestions for mistyped names."""

import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import (
    BYTES,
    FLAG,
    PATH,
    TEXT,
    TEXTS,
    InvalidValue,
    Kind,
    PromptError,
    StoreError,
    did_you_mean,
    num_slips,
    number,
    one_of,
    shown,
    suggest,
    whole,
)
from promptcache.layout import Level

RING: list[Any] = []
RING.append(RING)


class Hostile:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (TEXT, ["", "x", "é"], [None, b"x", "\ud800", 1]),
        (TEXT | None, [None, "x"], [1]),
        (TEXTS, [[], ["x"], {"x"}, ("x",)], ["x", [1], ["\ud800"], None, iter(["x"])]),
        (FLAG, [True, False], [1, None, "true"]),
        (PATH, ["x", Path("x")], ["", "a\0b", "\ud800", None, 1, b"x"]),
        (BYTES, [0, 2**63 - 1], [-1, 2**63, True, 1.0, None]),
        (whole(1, 3), [1, 3], [0, 4, True, 1.5, "1", float("nan")]),
        (number(0), [0, 0.5, 10**300], [-0.1, float("nan"), float("inf"), True, "1", 1j, 10**400]),
        (one_of(Level), ["exact", Level.EXACT], ["x", None, 1, ["exact"]]),
    ],
)
def test_a_kind_takes_what_it_says(kind: Kind, taken: list[Any], refused: list[Any]) -> None:
    """A check accepts the values of its kind, and raises the given error for all others."""
    for value in taken:
        kind.check("name", value, StoreError)
    for value in [*refused, Hostile(), RING]:
        with pytest.raises(StoreError, match=r"^name=.* is not allowed: .* is expected$"):
            kind.check("name", value, StoreError)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x" * 100_000, None),
        (list(range(10**6)), None),
        (10**5000, "<int of more than 4300 digits>"),
        (RING, "[[[...]]]"),
        ("a" * 1000 + "before \udc80 after", "'aaaaaaaabefore \\udc80 after'"),
    ],
    ids=["text", "list", "int", "ring", "surrogate"],
)
def test_whatever_is_shown_is_short(value: object, expected: str | None) -> None:
    """Any value is shown in one short line; text with a lone surrogate by the part around it."""
    assert len(shown(value)) < 100
    assert expected is None or shown(value) == expected
    assert shown(Hostile())


def test_errors_of_values_are_those_of_python_too() -> None:
    """Errors of values are also `TypeError` and `ValueError`, and survive pickling."""
    with pytest.raises(InvalidValue, match="diagnostics=5") as found:
        PromptError(5)  # type: ignore[arg-type]
    assert isinstance(found.value, TypeError)
    assert isinstance(found.value, ValueError)
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)
    with pytest.raises(ValueError, match="'x' is no Level: one of exact, modular is expected"):
        Level("x")


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
