"""The law over requests: with all options of `generate`, in every way of asking, answers are those of the reference."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.conftest import law_examples, some_of
from tests.requests.answers import requests_are_the_reference
from tests.requests.features import count_pairs, possible_pairs, reason_against
from tests.requests.independent import FIRST_SEED, run_over
from tests.requests.workloads import workloads

NUM_PARTS = 24
MAX_WORKLOADS = 2000


@pytest.mark.law
@pytest.mark.long
@pytest.mark.parametrize("part", some_of(range(NUM_PARTS), 2))
def test_requests_with_any_options_are_answered_by_the_reference(part: int) -> None:
    """Each request of a random workload gets what transformers decodes from logits of the reference."""
    seeds = range(FIRST_SEED + part, FIRST_SEED + NUM_PARTS * law_examples(0.0104, thorough=0.1), NUM_PARTS)

    run_over(workloads(), requests_are_the_reference, seeds)


@pytest.mark.long
def test_every_pair_of_features_is_drawn() -> None:
    """Random workloads have every pair of features in one request, and none of those that cannot be together."""
    counts: Counter[tuple[str, str]] = Counter()
    missing = [*possible_pairs()]
    for start in range(0, MAX_WORKLOADS, 100):  # what is drawn depends on the modules that are loaded
        if missing:
            run_over(workloads(), partial(count_pairs, counts), range(start, start + 100))
            missing = [pair for pair in missing if not counts[pair]]

    assert missing == []
    assert [pair for pair in counts if pair[0] != pair[1] and reason_against(*pair)] == []
