"""The number of examples in each profile: `make test`, `make test-thorough` and `make test-slow`.

A law has few examples in `make test`, because `make test-thorough` runs each law again with more of them.

PROMPTCACHE_EXAMPLES names the profile: default, thorough or slow. `make test-machines` sets two more:
PROMPTCACHE_THREADS is the number of threads of each worker, 1 by default. PROMPTCACHE_SLOWNESS multiplies the CPU time
that clocks show, as on a slow machine. `make test-triton` sets PROMPTCACHE_ATTENTION to "triton".
"""

from __future__ import annotations

import copy
import gc
import hashlib
import os
import ssl
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

import promptcache

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

    from promptcache.model import Model

# Nearly all objects of the tests are freed without the collector, which took a seventh of the processor time.
gc.set_threshold(10_000, 10, 10)

_T = TypeVar("_T")
PACKAGE = Path(promptcache.__file__).parent
_AMOUNT = os.environ.get("PROMPTCACHE_EXAMPLES", "default")
_SMALL_BYTES = 2**21
_LAW_EXAMPLES = {"default": 13, "thorough": 36, "slow": 20_000}
_LAW_PAIRS = {"default": 16, "thorough": 56, "slow": 20_000}

settings.register_profile(
    "shared machine",
    max_examples=30 if _AMOUNT == "default" else 100,
    deadline=None,
    derandomize="CI" in os.environ,  # a change is judged by itself; new examples are for whoever works on the code
    suppress_health_check=[HealthCheck.too_slow],  # says how busy the machine is, not how good a strategy is
)
settings.load_profile("shared machine")


_NOT_LOADED = {"__main__", "ray_app", "langchain", "llama_index"}
if find_spec("triton") is None:
    _NOT_LOADED.add("segments_kernel")
os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it when it is loaded, which torch may do


def pytest_configure(config: pytest.Config) -> None:
    """Give each worker one thread, and load all modules under CI, where tests run.

    Two workers have two cores: threads of one would only take time from the other. torch reads the variable when it is
    loaded, which the collection of tests does.

    Hypothesis draws constants of the local modules that are loaded just then, derandomized or not: were these not all
    of them, a test's examples would depend on which tests the same worker happened to run before. Files of schemas are
    never imported, and those that need Ray or frameworks only by slow tests and those of clients.
    """
    os.environ["OMP_NUM_THREADS"] = os.environ.get("PROMPTCACHE_THREADS", "1")
    runs_tests = config.getoption("dist", "no") == "no"  # the process that distributes tests to workers runs none
    if "CI" in os.environ and runs_tests:
        for file in sorted(PACKAGE.rglob("*.py")):
            if file.stem not in _NOT_LOADED and "schemas" not in file.parts:
                parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
                import_module(".".join(parts).removesuffix(".__init__"))


@pytest.fixture(scope="session", autouse=True)
def _slow_clocks() -> Iterator[None]:
    """Clocks of CPU time run faster, so that all work seems slow."""
    with pytest.MonkeyPatch.context() as patched:
        if slowness := os.environ.get("PROMPTCACHE_SLOWNESS"):
            for name in ("process_time", "thread_time"):
                clock = getattr(time, name)
                patched.setattr(time, name, lambda clock=clock: float(slowness) * clock())
        yield


@pytest.fixture(scope="session", autouse=True)
def _attention() -> Iterator[None]:
    """Compute attention with the Triton kernels in their interpreter, if the run asks for it."""
    if os.environ.get("PROMPTCACHE_ATTENTION") != "triton":
        yield
        return
    from tests.attention.triton_interpreter import interpreted

    with interpreted("triton, interpreted in all tests"):
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_once() -> Iterator[None]:
    """Every HTTP client reads the certificates of all authorities, which takes 20 ms, also for plain HTTP."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _small_models_once() -> Iterator[None]:
    """Make the weights of a tiny model once, and test each small model once: tests make a thousand engines of few models.

    A model with other weights, settings or attention is another one. tests/encode/test_self_test.py tests the test.
    """
    import torch

    from promptcache import engine
    from promptcache.model.facts import is_quantized
    from promptcache.testing import tiny_model

    made: dict[int, LlamaForCausalLM] = {}
    tested: set[object] = set()
    check, make = engine.check_linking, tiny_model.LlamaForCausalLM

    def copy_of_model(config: LlamaConfig) -> LlamaForCausalLM:
        seed = torch.initial_seed()
        if seed not in made:
            made[seed] = make(config)
        return copy.deepcopy(made[seed])

    def check_once(model: Model) -> None:
        if sum(each.nbytes for each in model.hf.parameters()) > _SMALL_BYTES or is_quantized(model.hf):
            check(model)
            return
        weights = hashlib.sha256()
        for each in model.hf.state_dict().values():
            weights.update(each.detach().cpu().reshape(-1).view(torch.uint8).numpy())
        identity = (type(model.hf), str(model.hf.config), model.context_length, model.shape, weights.digest())
        if identity not in tested:
            check(model)
            tested.add(identity)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tiny_model, "LlamaForCausalLM", copy_of_model)
        patched.setattr(engine, "check_linking", check_once)
        yield


def pytest_unconfigure() -> None:
    """Let the last collection find what `_own_objects` froze: triton reports what is not freed."""
    if "triton" in sys.modules:
        gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def _own_objects() -> None:
    """Keep garbage collections from traversing the objects of all modules before: one took up to 3.9 s."""
    gc.collect()
    gc.freeze()


def law_examples(share: float = 1.0, thorough: float | None = None) -> int:
    """Return the number of examples of a law in this run; a law whose examples cost more has a share of them."""
    if thorough is not None and _AMOUNT == "thorough":
        share = thorough
    return max(5, int(share * _LAW_EXAMPLES[_AMOUNT]))


def law_pairs(share: float = 1.0) -> int:
    """Return the number of pairs of schema and prompt for a law of cached answers in this run."""
    return int(share * _LAW_PAIRS[_AMOUNT])


def some_of(values: Iterable[_T], step: int) -> list[_T]:
    """Return every `step`-th value in the usual runs, and all of them in thorough and slow ones."""
    return [*values][:: step if _AMOUNT == "default" else 1]
