"""Intervals are those of the methods that they name."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.intervals import difference_interval, paired_difference, ratio_of_medians, share_interval
from tools.demo.questions import Rate

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


def test_documents_with_one_question_have_the_intervals_of_proportions() -> None:
    """With one question for each document, shares have Wilson's interval and differences Newcombe's."""
    first, second = [True] * 9 + [False], [True] * 6 + [False] * 4

    assert share_interval([[each] for each in first]) == pytest.approx((0.9, *Rate(right=9, asked=10).interval))
    assert difference_interval([[each] for each in first], [[each] for each in second]) == paired_difference(
        first, second
    )


@pytest.mark.parametrize("right", [True, False])
def test_equal_documents_leave_doubt(right: bool) -> None:
    """If all documents are alike, the bootstrap sees no spread; then the interval is that of one question each."""
    documents = [[right] * 3] * 12
    share, low, high = share_interval(documents)

    assert share == right
    assert high - low == pytest.approx(0.24, abs=0.01)
    assert difference_interval(documents, documents) == paired_difference([right] * 12, [right] * 12)


def test_differences_of_documents_are_paired() -> None:
    """The interval of a difference is that of the differences by document, not of two separate shares."""
    rng = Random(4)
    second = [[rng.random() < 0.5 for _ in range(3)] for _ in range(40)]
    first = [[True, *each[1:]] for each in second]
    difference, low, high = difference_interval(first, second)

    assert difference == pytest.approx(sum(not each[0] for each in second) / 120)
    assert 0 < low < difference < high < 1 / 3


def test_noise_that_both_sides_meet_leaves_their_ratio_sure() -> None:
    """The ratio of medians comes from pairs: shared noise cancels out, and noise of one side does not."""
    rng = Random(5)
    shared = [1 + rng.random() for _ in range(31)]
    ratio, low, high = ratio_of_medians([1.1 * each for each in shared], shared)
    _, other_low, other_high = ratio_of_medians([1.1 * each for each in rng.sample(shared, 31)], shared)

    assert (ratio, low, high) == pytest.approx((1.1, 1.1, 1.1))
    assert other_low < 1.05 < 1.15 < other_high
