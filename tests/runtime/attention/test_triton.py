"""The Triton backend in Triton's interpreter: plans of any kind equal dense attention in float64."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from promptcache.kv import KVShape, Slab
from promptcache.runtime import tails
from promptcache.runtime.attention import (
    AttentionCall,
    AttentionSpec,
    GroupedQueries,
    RequestPositions,
    RowChunk,
    SegmentedAttention,
    StepAttention,
    StepTokens,
    TailGroup,
    TritonBackend,
    append_function,
    choose_backend,
    choose_step_backend,
    padded_positions,
    token_store,
)
from promptcache.runtime.attention.segment_lists import make_lists, request_ranges
from promptcache.runtime.attention.triton_backend import append, computes_rightly
from promptcache.runtime.hf.model import Model
from promptcache.runtime.reference import reference_logits
from promptcache.runtime.tails import Tails
from promptcache.testing.cached import distance
from tests.conftest import law_examples
from tests.families import FAMILIES, random_model
from tests.runtime.attention.dense import dense_attention
from tests.runtime.attention.triton_interpreter import InterpretedBackend, interpreted
from tests.runtime.attention.views import View, random_slab
from tests.runtime.serving.test_batch import largest_distance_of_steps
from tests.runtime.test_families import PROMPT, cached_logits, plan_for

USUAL = pytest.mark.parametrize(
    "family", ["gpt-oss", *(pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES if each != "gpt-oss")]
)
"""The family of each run has layers with and without windows, sinks and experts."""

NUM_LAYERS, HEAD_DIM, SCALE = 2, 16, 0.3
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request of a plan: positions of its segments and of its own tokens, of which the last `new` are computed."""

    segments: tuple[View, ...]
    own: tuple[int, ...]
    new: int


class Plan:
    """A random forward pass: requests that share segments, with arguments in the middle, gaps, windows and sinks."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self._chance = chance = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.heads, self.groups = chance.choice([1, 2, 3]), chance.choice([1, 2, 3, 7])
        self.shape = KVShape(num_layers=NUM_LAYERS, num_kv_heads=self.heads, head_dim=HEAD_DIM, dtype=dtype, device=CPU)
        self.window = chance.choice([None, 3, 25, 160])
        self.sinks = self.states(self.heads * self.groups) if chance.random() < 0.3 else None
        places = self._places()
        shared = [self._view(tuple(each)) for each in places[::2]]
        gaps = [each for each in places[1::2] if each]
        last = max(max(each) for each in places if each)
        self.rows = [self._row(shared, gaps, last) for _ in range(chance.choice([1, 1, 2, 4]))]

    def states(self, *shape: int) -> torch.Tensor:
        """Random numbers."""
        return torch.randn(shape, generator=self.generator, dtype=self.shape.dtype)

    def _places(self) -> list[list[int]]:
        """Positions of segments, each followed by positions that own tokens may have."""
        place, found = self._chance.randrange(5), []
        for _ in range(self._chance.randint(1, 5)):
            for length in (self._chance.choice([1, 2, 5, 30, 140]), self._chance.choice([0, 0, 2])):
                found.append([*range(place, place + length)])
                place += length + self._chance.choice([0, 0, 4])
        return found

    def _view(self, placed: tuple[int, ...]) -> View:
        before = self._chance.choice([0, 3])
        return View(random_slab(self.shape, before + len(placed) + 2, self.generator), before, placed)

    def _row(self, shared: list[View], gaps: list[list[int]], last: int) -> Row:
        chance = self._chance
        segments = tuple(each for each in shared if chance.random() < 0.7)
        inside = [place for gap in gaps if chance.random() < 0.5 for place in gap]
        number = chance.choice([1, 2, 9, 40])
        own = (*inside, *range(last + chance.randint(1, 4), last + 4 + number))
        return Row(segments=segments, own=own, new=chance.choice([1, 1, min(3, len(own)), len(own)]))

    def expected(self, row: Row, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Dense attention by position, `[1, Hq, T, D]`, in float64."""
        own = torch.tensor(row.own)
        places = torch.tensor([place for view in row.segments for place in view.placed] + list(row.own))
        distance = own[-row.new :, None] - places
        mask = (distance >= 0) & (distance < (self.window or 1 << 30))
        stored = [view.layers().by_layer[1] for view in row.segments]
        all_keys, all_values = (
            torch.cat([*(each[kind] for each in stored), tail], dim=2) for kind, tail in enumerate((keys, values))
        )
        return dense_attention(query, all_keys, all_values, scale=SCALE, mask=mask, sinks=self.sinks)[0]

    def call(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> AttentionCall:
        """The arguments of one layer."""
        return AttentionCall(query, keys, values, SCALE, self.window, sinks=self.sinks)


def distance_of_request(plan: Plan) -> float:
    """Run the first row of a plan alone, as several batch rows, and return its distance from dense attention."""
    row, batch = plan.rows[0], len(plan.rows)
    query = plan.states(batch, row.new, plan.heads * plan.groups, HEAD_DIM).transpose(1, 2)
    keys, values = (plan.states(batch, plan.heads, len(row.own), HEAD_DIM) for _ in range(2))
    found = SegmentedAttention(RequestPositions(row.segments, row.own)).run(1, plan.call(query, keys, values))
    expected = torch.cat(
        [plan.expected(row, *(states[index : index + 1] for states in (query, keys, values))) for index in range(batch)]
    )
    return _distance(found.transpose(1, 2), expected)


def distance_of_step(plan: Plan) -> float:
    """Run all rows of a plan in one step over tails and chunks, and return the largest distance of a row."""
    tails = Tails(plan.shape)
    rows = sorted(plan.rows, key=lambda row: row.new > 1)
    own = [tuple(plan.states(1, plan.heads, len(row.own), HEAD_DIM) for _ in range(2)) for row in rows]
    starts = [sum(row.new for row in rows[:index]) for index in range(len(rows) + 1)]
    groups, chunks, places = [], [], []
    for index, (row, kv) in enumerate(zip(rows, own, strict=True)):
        tail = tails.take(len(row.own))
        memory = tails.memory(tail)
        old = len(row.own) - row.new
        for states, mine in zip((memory.keys, memory.values), kv, strict=True):
            states[:, :, :old] = mine[0, :, :old]
        places += [(memory, place) for place in range(old, len(row.own))]
        positions = np.array(row.own)
        if row.new == 1:
            views = tails.views(tail.size, tail.slot, tail.slot, len(row.own))
            groups.append(
                TailGroup(
                    start=starts[index],
                    stop=starts[index + 1],
                    views=views,
                    indices=(0,),
                    positions=padded_positions([positions]),
                )
            )
        else:
            older = View(Slab(keys=memory.keys, values=memory.values), 0, row.own[:old]) if old else None
            chunks.append(RowChunk(start=starts[index], stop=starts[index + 1], older=older))
    segments = tuple({each: None for row in rows for each in row.segments})
    users = np.array([[each in row.segments for row in rows] for each in segments], dtype=np.bool_)
    sizes = [row.new for row in rows]
    step = StepTokens(
        segments=segments,
        users=np.repeat(users.reshape(len(segments), len(rows)), sizes, axis=1),
        positions=np.concatenate([np.array(row.own[-row.new :]) for row in rows]),
        groups=tuple(groups),
        chunks=tuple(chunks),
        device=CPU,
    )
    query = plan.states(1, starts[-1], plan.heads * plan.groups, HEAD_DIM).transpose(1, 2)
    keys, values = (
        torch.cat([kv[kind][:, :, -row.new :] for row, kv in zip(rows, own, strict=True)], dim=2) for kind in range(2)
    )
    store = token_store(plan.shape, places)
    assert store is not None
    for layer in range(NUM_LAYERS):
        store.write(layer, keys[0].transpose(0, 1), values[0].transpose(0, 1))
    found = StepAttention(step).run(1, plan.call(query, keys, values)).transpose(1, 2)
    return max(
        _distance(found[:, :, start : start + row.new], plan.expected(row, query[:, :, start : start + row.new], *kv))
        for row, kv, start in zip(rows, own, starts, strict=False)
    )


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, against the size of values, which is about 1."""
    return float((found.double() - expected).abs().max() / max(1.0, float(expected.abs().max())))


@pytest.mark.law
def test_random_plans_equal_dense_attention() -> None:
    """Requests alone and in steps attend by position: any segments, gaps, arguments, windows, sinks, chunks.

    In float64, which half of the plans have, nothing hides behind rounding. Scores of about 5 are rounded by 5e-7 in
    float32.
    """
    with interpreted():
        for seed in range(min(2000, law_examples(0.2))):
            plan = Plan(seed, torch.float32 if seed % 2 else torch.float64)
            bound = 2e-6 if seed % 2 else 1e-13
            assert max(distance_of_request(plan), distance_of_step(plan)) < bound, f"plan {seed}"


def test_prepared_attention_has_room_for_later_tokens() -> None:
    """A token's lists serve those after it, also past their room."""
    plan = Plan(0)
    plan.heads = 1
    plan.window = plan.sinks = None
    segment = View(random_slab(replace(plan.shape, num_kv_heads=1), 6, plan.generator), 1, (0, 1, 2, 3))
    attention = SegmentedAttention(RequestPositions([segment], [5]))
    query = plan.states(1, plan.heads * plan.groups, 1, HEAD_DIM)
    keys, values = (plan.states(1, plan.heads, 600, HEAD_DIM) for _ in range(2))
    with interpreted():
        for count in (1, 256, 257, 3):
            own = tuple(range(5, 5 + count))
            call = plan.call(query, keys[:, :, :count], values[:, :, :count])
            row = Row(segments=(segment,), own=own, new=1)
            assert _distance(attention.run(1, call).transpose(1, 2), plan.expected(row, *call[:3])) < 1e-6


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
    monkeypatch.setattr(InterpretedBackend, "prepare_step", _noting(InterpretedBackend.prepare_step, used))

    assert largest_distance_of_steps(model, plans, 6, interpreted()) < 1e-5
    assert bool(used) is not model.facts.softcap


@USUAL
def test_a_request_computes_with_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request gets the logits of the reference."""
    model, plan = Model(random_model(family, torch.float32)), plan_for(PROMPT, family=family)
    used: list[str] = []
    monkeypatch.setattr(InterpretedBackend, "prepare", _noting(InterpretedBackend.prepare, used))

    with interpreted():
        found = cached_logits(plan, model)

    assert distance(found, reference_logits(plan.tokens, model)) < 1e-5
    assert bool(used) is not model.facts.softcap


def _noting(function: Callable[..., Any], used: list[str]) -> Callable[..., Any]:
    def noted(*args: Any) -> Any:
        used.append(function.__name__)
        return function(*args)

    return noted


@pytest.mark.parametrize("batch", [1, 3])
def test_new_kv_is_written_behind_older_kv(batch: int) -> None:
    """One kernel writes the keys and values of several rows and tokens, whatever their strides, and nothing else."""
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(batch, 4, 2, HEAD_DIM, generator=generator).transpose(1, 2) for _ in range(2))
    values = values.transpose(2, 3).contiguous().transpose(2, 3)  # neighbours of a head are apart
    found, expected = ([torch.zeros(batch, 2, 9, HEAD_DIM) for _ in range(2)] for _ in range(2))
    for memory, states in zip(expected, (keys, values), strict=True):
        memory[:, :, 3:7] = states

    with interpreted():
        write = append_function(torch.float32, HEAD_DIM, CPU)
        write(*(memory[:, :, 3:7] for memory in found), keys, values)

    assert write is append
    assert all(map(torch.equal, found, expected))


def test_memory_is_held_while_its_addresses_are_in_use() -> None:
    """Lists hold the segments that they have addresses of."""
    plan = Plan(1)
    segment = View(random_slab(plan.shape, 4, plan.generator), 0, (0, 1, 2, 3))
    known = weakref.ref(segment.slab)
    mask = RequestPositions([segment], [9]).forward_mask(1, 1, None)
    lists = make_lists(
        [*request_ranges(mask, 1, 1)],
        np.array([9]),
        np.array([9]),
        num_queries=1,
        num_kv_heads=1,
        tokens_at_once=1,
        compares_own=False,
        holds=mask.segments,
    )

    del segment, mask
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
    words = [sys.executable, "-m", "tests.runtime.attention.compile_kernels", str(capability)]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}

    shown = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    spilled = {name: int(count) for name, _, count in (line.rpartition(" ") for line in shown.splitlines())}
    assert {name: count for name, count in spilled.items() if count} == {}
    assert len(spilled) == 5 * 7


@pytest.mark.parametrize(
    ("changes", "is_supported"),
    [
        ({}, True),
        ({"softcap": 30.0}, False),
        ({"head_dim": 80}, False),
        ({"dtype": torch.float64}, False),
        ({"groups": 32}, False),
    ],
    ids=str,
)
def test_other_kernels_compute_the_rest(
    changes: dict[str, object], is_supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soft caps, odd head sizes, other dtypes and very many heads of a group go to the backends after it."""
    for name in ("dtypes", "head_dims"):
        monkeypatch.setattr(InterpretedBackend, name, getattr(TritonBackend, name))
    values = {"softcap": None, "head_dim": 64, "dtype": torch.bfloat16, "groups": 4, **changes}
    queries = GroupedQueries(batch=1, num_tokens=1, num_kv_heads=2, num_groups=values.pop("groups"))
    spec = AttentionSpec(queries=queries, device=CPU, **values)

    with interpreted():
        for backend in (choose_backend(spec), choose_step_backend(spec)):
            assert isinstance(backend, InterpretedBackend) is is_supported
