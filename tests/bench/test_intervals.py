"""Intervals are those of the methods that they name."""

from __future__ import annotations

from random import Random

import pytest

from promptcache.bench.intervals import mean_interval, paired_difference

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((36, 12, 2, 0), (0.2000, 0.0569, 0.3404)),
        ((20, 12, 2, 16), (0.2000, 0.0562, 0.3292)),
    ],
)
def test_paired_intervals_are_the_published_ones(
    counts: tuple[int, int, int, int], expected: tuple[float, float, float]
) -> None:
    """Method 10's intervals for tables of both, first only, second only and neither are those of Newcombe 1998."""
    both, one, other, neither = counts
    first = [True] * (both + one) + [False] * (other + neither)
    second = [True] * both + [False] * one + [True] * other + [False] * neither

    assert tuple(round(each, 4) for each in paired_difference(first, second)) == expected


def test_paired_difference_changes_sign_with_its_sides() -> None:
    """Exchanging the sides turns the difference and its interval round."""
    rng = Random(1)
    first, second = ([rng.random() < share for _ in range(200)] for share in (0.9, 0.95))
    difference, low, high = paired_difference(first, second)

    assert paired_difference(second, first) == pytest.approx((-difference, -high, -low))


def test_equal_answers_are_no_difference_but_leave_doubt() -> None:
    """Two equal columns differ by 0, and the interval around it shrinks with their number."""
    few, many = (paired_difference([True] * count, [True] * count) for count in (20, 2000))

    assert few[0] == many[0] == 0
    assert few[1] < many[1] < 0 < many[2] < few[2]


def test_bootstrap_covers_the_mean_as_often_as_it_says() -> None:
    """Of 200 intervals around means of exponential draws, about 95 % hold the true mean."""
    rng = Random(2)
    intervals = [mean_interval([rng.expovariate(1.0) for _ in range(100)], seed) for seed in range(200)]

    assert 0.88 < sum(low <= 1.0 <= high for _, low, high in intervals) / 200 <= 0.99
