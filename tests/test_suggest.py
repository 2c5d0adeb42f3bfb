"""Suggestions for mistyped names."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import did_you_mean, num_slips, suggest
from promptcache.language import Schema, check_schema

SCHEMAS = sorted((Path(__file__).parents[1] / "schemas").glob("*.xml"))
WORDS = st.text("abc", max_size=6)


def names(file: Path) -> list[str]:
    """The names of all modules and parameters of a schema."""
    schema = check_schema(Schema.from_file(file))
    modules = (path.rpartition("/")[2] for path in schema.modules)
    parameters = (name for found in schema.parameters.values() for name in found)
    return list(dict.fromkeys([*modules, *parameters]))


def mutations(name: str, rng: random.Random) -> Iterator[str]:
    """A letter left out, added, replaced, and swapped with the next."""
    at, letter = rng.randrange(len(name) - 1), rng.choice(string.ascii_lowercase)
    yield name[:at] + name[at + 1 :]
    yield name[:at] + letter + name[at:]
    yield name[:at] + letter + name[at + 1 :]
    yield name[:at] + name[at + 1] + name[at] + name[at + 2 :]


def trials(known: Sequence[str], rng: random.Random, repeats: int = 5) -> Iterator[tuple[str, str]]:
    """Mistyped names with what was meant, but for those that happen to be another name."""
    for name in known:
        for mutation in (each for _ in range(repeats) for each in mutations(name, rng)):
            if len(name) >= 3 and mutation not in known:
                yield mutation, name


@pytest.mark.parametrize("pooled", [False, True], ids=["within its schema", "among all names"])
def test_single_slips_are_suggested_right(pooled: bool) -> None:
    """At least 95 % of single-edit mutations of the shipped schemas' names lead back to the name."""
    known = [names(file) for file in SCHEMAS]
    if pooled:
        known = [list(dict.fromkeys(name for each in known for name in each))]
    rng = random.Random(2024)
    outcomes = [suggest(typed, each) == meant for each in known for typed, meant in trials(each, rng)]

    assert len(outcomes) > 300
    assert sum(outcomes) / len(outcomes) >= 0.95


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
