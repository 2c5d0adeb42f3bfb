"""Intervals by the bootstrap cover the mean."""

from __future__ import annotations

from random import Random

import pytest

from promptcache.fidelity import clustered_interval

pytestmark = pytest.mark.long


def test_bootstrap_covers_the_mean_as_often_as_it_says() -> None:
    """Of 200 intervals around means of exponential draws, about 95 % hold the true mean."""
    rng = Random(2)
    intervals = [clustered_interval([[rng.expovariate(1.0)] for _ in range(100)], seed) for seed in range(200)]

    assert 0.88 < sum(low <= 1.0 <= high for _, low, high in intervals) / 200 <= 0.99


def test_questions_about_one_document_count_together() -> None:
    """If all questions about a document have one outcome, three of them tell no more than one."""
    rng = Random(3)
    alone = [[float(rng.random() < 0.6)] for _ in range(60)]
    repeated = [each * 3 for each in alone]

    assert clustered_interval(repeated) == pytest.approx(clustered_interval(alone))
    wrong = clustered_interval([[each] for document in repeated for each in document])
    assert wrong[2] - wrong[1] < 0.7 * (clustered_interval(alone)[2] - clustered_interval(alone)[1])
