"""Examples of Hypothesis that are drawn independently of each other.

In one run, Hypothesis makes five of six examples out of parts of earlier ones. Rare pairs of features need more variety.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

_T = TypeVar("_T")
FIRST_SEED = 0 if "CI" in os.environ else random.randrange(2**32)
"""The first seed of a law; as in `tests.conftest`, examples are the same in each run under CI."""


def run_over(strategy: SearchStrategy[_T], check: Callable[[_T], None], seeds: Iterable[int]) -> None:
    """Check one example for each seed. An example that fails is reduced and reported by Hypothesis."""
    for each in seeds:
        _run_one(strategy, check, each)


def _run_one(strategy: SearchStrategy[_T], check: Callable[[_T], None], first: int) -> None:
    is_simplest = True  # the first example of every run is the simplest of all

    @seed(first)
    @settings(max_examples=2, database=None, derandomize=False, phases=[Phase.generate, Phase.shrink])
    @given(number=st.integers(), example=strategy)  # the first choice of the second example is never the simplest
    def run(number: int, example: _T) -> None:
        nonlocal is_simplest
        if not is_simplest:
            check(example)
        is_simplest = False

    run()
