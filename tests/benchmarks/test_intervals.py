"""Intervals are those of the methods that they name."""

from random import Random

import pytest

from benchmarks.intervals import difference_interval, paired_difference, ratio_of_medians, ratio_of_sums, share_interval
from tools.demo.questions import Rate


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


def test_noise_that_both_sides_meet_leaves_their_ratio_sure() -> None:
    """The ratio of medians comes from pairs: shared noise cancels out, and noise of one side does not."""
    rng = Random(5)
    shared = [1 + rng.random() for _ in range(31)]
    ratio, low, high = ratio_of_medians([1.1 * each for each in shared], shared)
    _, other_low, other_high = ratio_of_medians([1.1 * each for each in rng.sample(shared, 31)], shared)

    assert (ratio, low, high) == pytest.approx((1.1, 1.1, 1.1))
    assert other_low < 1.05 < 1.15 < other_high


def test_ratios_of_sums_hold_the_true_ratio() -> None:
    """Of 200 intervals around ratios of noisy pairs, about 95 % hold the true ratio."""
    rng = Random(2)
    inside = 0
    for seed in range(200):
        second = [rng.uniform(1, 9) for _ in range(40)]
        first = [0.8 * each * rng.uniform(0.7, 1.3) for each in second]
        _, low, high = ratio_of_sums(first, second, seed)
        inside += low <= 0.8 <= high

    assert 0.88 < inside / 200 <= 0.99
    assert ratio_of_sums([2.0, 4.0, 8.0], [1.0, 2.0, 4.0]) == pytest.approx((2.0, 2.0, 2.0))
