"""The Triton backend in Triton's interpreter: plans of any kind equal dense attention in float64."""

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from promptcache.attention import AttentionSpec, PassTokens, TokenStore, has_kernels
from promptcache.attention.pass_attention import choose_backend
from promptcache.attention.segment_lists import key_ranges, make_lists
from promptcache.attention.triton_backend import computes_rightly
from promptcache.kv import KVShape
from promptcache.model.model import Model
from promptcache.rows import tails
from tests.attention.plans import PassPlan, random_kv, view_of
from tests.attention.triton_interpreter import InterpretedBackend, interpreted
from tests.conftest import law_examples
from tests.families import FAMILIES, random_model
from tests.model.test_families import plan_for
from tests.rows.test_interleavings import largest_distance_of_steps

USUAL = pytest.mark.parametrize(
    "family", ["gpt-oss", *(pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES if each != "gpt-oss")]
)
"""The family of each run has layers with and without windows, sinks and experts."""

CPU = torch.device("cpu")


def write_by_kernel(shape: KVShape, places: Any, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write all tokens of a pass by one kernel, whatever their strides."""
    assert has_kernels(shape)
    store = TokenStore(places, shape.device)
    store.write(layer, keys, values.transpose(1, 2).contiguous().transpose(1, 2))  # neighbours of a head are apart


@pytest.mark.law
def test_random_plans_equal_dense_attention() -> None:
    """Random passes attend by position. In float64 nothing hides; float32 rounds scores of about 5 by 5e-7."""
    backend = InterpretedBackend("plans")
    with interpreted():
        for seed in range(min(2000, law_examples(0.2))):
            plan = PassPlan(seed, torch.float32 if seed % 2 else torch.float64)
            far = plan.distance(backend, write_by_kernel)
            assert far is not None
            assert far < (2e-6 if seed % 2 else 1e-13), f"plan {seed}"


SHORT = """<schema name="short">
<module name="trip" required="true">For <parameter name="days" length="2"/> in a big town</module>
<union name="city"><module name="miami">by the long sea</module><module name="paris">of soup</module></union></schema>"""
SHORT_PROMPTS = (
    '<prompt schema="short"><trip days="9"/><paris/>Where?</prompt>',
    '<prompt schema="short"><trip/><miami/>Go on</prompt>',
    '<prompt schema="short"><trip days="4"/><paris/>Why?</prompt>',
)
"""Two prompts share all modules, one shares the first words. Windows of 12 tokens end in modules and in own tokens."""


@pytest.mark.law
@USUAL
def test_families_compute_steps_with_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of every family give the logits of the reference; soft caps and odd head sizes fall back.

    In each layer, the interpreter takes 5 ms for a head of a token, and 30 ms for a head of an item. So prompts are
    short, and modules are encoded by other kernels.
    """
    monkeypatch.setattr(tails, "_SMALLEST_TAIL", 8)  # so that short rows, too, outgrow it
    plans = [plan_for(prompt, family=family, source=SHORT) for prompt in SHORT_PROMPTS]
    model = Model(random_model(family, torch.float32))
    used: list[str] = []
    monkeypatch.setattr(InterpretedBackend, "prepare", _noting(InterpretedBackend.prepare, used))

    assert largest_distance_of_steps(model, plans, 6, interpreted()) < 1e-5
    assert bool(used) is not model.facts.softcap


def _noting(function: Callable[..., Any], used: list[str]) -> Callable[..., Any]:
    def noted(*args: Any) -> Any:
        used.append(function.__name__)
        return function(*args)

    return noted


def test_memory_is_held_while_its_addresses_are_in_use() -> None:
    plan = PassPlan(1)
    segment = view_of(random_kv(plan.shape, 4, plan.generator), 0, (0, 1, 2, 3))
    known = weakref.ref(segment.kv)
    tokens = PassTokens(
        segments=(segment,),
        users=np.ones((1, 1), dtype=np.bool_),
        positions=np.array([9]),
        groups=(),
        chunks=(),
        device=CPU,
    )
    lists = make_lists(
        [*key_ranges(tokens, None)],
        tokens.positions,
        num_kv_heads=1,
        tokens_at_once=1,
        compares_own=False,
        holds=tokens.segments,
    )

    del segment, tokens
    gc.collect()
    assert known() is not None
    del lists
    gc.collect()
    assert known() is None


def test_the_check_of_a_device_computes_what_matrix_products_give() -> None:
    """The interpreter passes the check that a GPU has to pass before the backend is used on it."""
    assert computes_rightly(CPU, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_compiled_kernels_spill_nothing(capability: int, tmp_path: Path) -> None:
    """Compiled for a GPU that is not there, no kernel needs local memory. Another process compiles: this one interprets."""
    words = [sys.executable, "-m", "tests.attention.compile_kernels", str(capability)]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}

    shown = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    spilled = {name: int(count) for name, _, count in (line.rpartition(" ") for line in shown.splitlines())}
    assert {name: count for name, count in spilled.items() if count} == {}
    assert len(spilled) == 5 * 6


def test_very_many_heads_of_a_group_go_to_other_backends() -> None:
    for groups, is_supported in ((16, True), (32, False)):
        spec = AttentionSpec(
            num_tokens=1,
            num_kv_heads=2,
            num_groups=groups,
            head_dim=64,
            dtype=torch.bfloat16,
            device=CPU,
            softcap=None,
        )
        with interpreted():
            assert isinstance(choose_backend(spec), InterpretedBackend) is is_supported
