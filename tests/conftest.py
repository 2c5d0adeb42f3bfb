"""How many examples the laws get: `make test`, `make test-thorough` and `make test-slow` differ in nothing else."""

from __future__ import annotations

import os
from importlib import import_module
from pkgutil import walk_packages

import pytest
from hypothesis import HealthCheck, settings

import promptcache

if "CI" in os.environ:
    # Hypothesis draws constants of the local modules that are loaded just then, derandomized or not: were these not all
    # of them, a test's examples would depend on which tests the same worker happened to run before.
    for _module in walk_packages(promptcache.__path__, "promptcache."):
        if not _module.name.endswith("__main__"):
            import_module(_module.name)

settings.register_profile(
    "shared machine",
    deadline=None,
    derandomize="CI" in os.environ,  # a change is judged by itself; new examples are for whoever works on the code
    suppress_health_check=[HealthCheck.too_slow],  # says how busy the machine is, not how good a strategy is
)
settings.load_profile("shared machine")

_LAW_EXAMPLES = {"quick": 150, "thorough": 1_000, "slow": 20_000}
_LAW_PAIRS = {"quick": 200, "thorough": 2_000, "slow": 20_000}


@pytest.fixture(scope="session", autouse=True)
def _one_thread_each() -> None:
    """Two workers on two cores: threads of one would only take time from the other."""
    import torch

    torch.set_num_threads(1)


def law_examples(share: float = 1.0) -> int:
    """Return how many examples a law gets in this run; `share` is for laws whose examples cost more than others."""
    return max(5, int(share * _LAW_EXAMPLES[_amount()]))


def law_pairs(share: float = 1.0) -> int:
    """Return how many pairs of schema and prompt a law of cached answers gets in this run."""
    return int(share * _LAW_PAIRS[_amount()])


def _amount() -> str:
    return os.environ.get("PROMPTCACHE_EXAMPLES", "quick")
