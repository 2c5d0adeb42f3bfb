"""One forward pass over many requests: each gets the logits that it gets alone."""

import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from promptcache.attention import pass_attention
from promptcache.attention.torch_backends import PortableBackend
from promptcache.kv import KV, KVMemory
from promptcache.layout import Encoding, Plan, RequestTokens
from promptcache.model.model import Model
from promptcache.model.reference import reference_logits
from promptcache.rows.batch import Batch
from promptcache.rows.coalesce import Copies
from promptcache.rows.forward_pass import Row
from promptcache.rows.history import History, Recalled
from promptcache.rows.tails import _SMALLEST_TAIL, Tails
from promptcache.testing.cached import distance
from tests.conftest import law_examples
from tests.families import random_model, usual_families
from tests.laws.service import default_model, serve
from tests.model.test_families import PROMPT, plan_for
from tests.rows.machine import continued, step_machine

PROMPTS = (
    PROMPT,
    '<prompt schema="families"><trip days="two"/><miami/>Go on, please?</prompt>',
    '<prompt schema="families"><trip days="nine" mood="joy"/><paris/><two/>What?</prompt>',
    '<prompt schema="families"><trip/></prompt>',
)


@cache
def windowed_model() -> Model:
    return Model(random_model("mistral", torch.float64))


@pytest.mark.law
@pytest.mark.parametrize(
    ("model", "tolerance", "share", "is_portable"),
    [(default_model, 1e-10, 0.3, False), (windowed_model, 1e-6, 0.2, False), (windowed_model, 1e-6, 0.1, True)],
    ids=["full", "windows", "matrix products"],
)
def test_any_interleaving_gives_the_logits_of_the_reference(
    model: Callable[[], Model], tolerance: float, share: float, is_portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining, leaving and computing any numbers of tokens in any order changes no logits of any row."""
    if is_portable:
        monkeypatch.setattr(pass_attention, "_backends", (PortableBackend(),))
    run_state_machine_as_test(
        step_machine(model(), tolerance), settings=settings(max_examples=law_examples(share), stateful_step_count=20)
    )


@pytest.mark.parametrize("family", usual_families())
def test_steps_keep_windows_caps_sinks_and_groups(family: str) -> None:
    """Steps of prompt chunks and single tokens give the logits of the reference, for every family that takes rows."""
    assert largest_distance_of_steps(Model(random_model(family, torch.float64)), usual_plans(family)) < 1e-6


def usual_plans(family: str) -> list[Plan]:
    return [plan_for(prompt, family=family) for prompt in PROMPTS]


def largest_distance_of_steps(
    model: Model,
    plans: Sequence[Plan],
    most_later: int = _SMALLEST_TAIL + 3,
    kernels: AbstractContextManager[None] | None = None,
) -> float:
    """Compute prompts, half of the first recalled, and at most `most_later` tokens; return the largest distance."""
    executor = serve(plans[0].layout.schema, model).executor
    batch, chance = Batch(model), random.Random(0)
    wanted, planned = {}, {}
    for plan in plans:
        kv_of = executor.fetch(part.encoding for part in plan.tokens.parts).kv_of
        recalled = half_recalled(model, plan.tokens, kv_of) if plan is plans[0] else None
        row = batch.join(plan.tokens, kv_of, recalled)
        more = [chance.randrange(5, 250) for _ in range(chance.randrange(most_later + 1))]
        wanted[row] = [*row.tokens.token_ids, *more]
        planned[row] = continued(plan.tokens, [*plan.tokens.token_ids, *more])
    found: dict[Row, list[torch.Tensor]] = {row: [] for row in wanted}

    with kernels or nullcontext():
        while unfinished := [row for row, token_ids in wanted.items() if row.num_own < len(token_ids)]:
            sizes = {row: chance.choice([1, 1, 1, 6]) for row in unfinished}
            work = [(row, wanted[row][row.num_own : row.num_own + size]) for row, size in sizes.items()]
            parts = batch.step(work, num_last=None).split([len(token_ids) for _, token_ids in work])
            for (row, _), part in zip(work, parts, strict=True):
                found[row].append(part)

    return max(
        distance(torch.cat(found[row]), reference_logits(tokens, model)[-len(wanted[row]) :])
        for row, tokens in planned.items()
    )


def half_recalled(model: Model, tokens: RequestTokens, kv_of: Mapping[Encoding, KV]) -> Recalled:
    """Return a request whose first half of own tokens history has."""
    history, batch = History(KVMemory(model.shape)), Batch(model)
    row = batch.join(tokens, kv_of)
    batch.step([(row, tokens.token_ids[: len(tokens.token_ids) // 2])])
    num_kept = history.keep(history.recall(tokens), (), batch.own_kv(row))
    recalled = history.recall(tokens)
    assert recalled.num_found == num_kept > 0
    return recalled


def test_a_step_that_fails_changes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plan = default_model(), plan_for(PROMPT)
    kv_of = serve(plan.layout.schema, model).executor.fetch(part.encoding for part in plan.tokens.parts).kv_of
    batch = Batch(model)
    row = batch.join(plan.tokens, kv_of)
    first, rest = plan.tokens.token_ids[:5], plan.tokens.token_ids[5:]
    batch.step([(row, first)])
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batch.step([(row, [*rest, *[7] * 100])])

    logits = batch.step([(row, rest)])

    assert row.num_own == len(plan.tokens.token_ids)
    assert distance(logits[0], reference_logits(plan.tokens, model)[-1]) < 1e-10


def test_a_step_without_memory_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass that ran out of memory, after it wrote its KV, is run again when KV was evicted."""
    model, plan, memory = default_model(), plan_for(PROMPT), KVMemory(default_model().shape)
    kv_of = serve(plan.layout.schema, model).executor.fetch(part.encoding for part in plan.tokens.parts).kv_of
    batch = Batch(model, Copies(model, memory))
    row = batch.join(plan.tokens, kv_of)
    forward = Model.forward

    def without_memory(*args: Any, **options: Any) -> torch.Tensor:
        found = forward(*args, **options)
        if memory.find("copies") is not None:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return found

    monkeypatch.setattr(Model, "forward", without_memory)
    found = []
    for token_id in plan.tokens.token_ids:
        handle = memory.allocate(4, 1.0)
        assert handle is not None
        assert memory.keep("copies", handle, 1.0)
        found.append(batch.step([(row, [token_id])]))

    assert distance(torch.cat(found), reference_logits(plan.tokens, model)) < 1e-10


def test_tails_take_the_least_memory_of_their_sizes() -> None:
    """A slab doubles when it is full, uses its lowest free slot, and is freed with its last tail."""
    tails = Tails(default_model().shape)
    small = [tails.take(_SMALLEST_TAIL) for _ in range(3)]
    large = tails.take(_SMALLEST_TAIL + 1)

    assert [each.slot for each in small] == [0, 1, 2]
    assert (small[0].size, large.size) == (_SMALLEST_TAIL, 2 * _SMALLEST_TAIL)
    assert tails.nbytes == (4 + 2) * _SMALLEST_TAIL * default_model().shape.token_bytes

    tails.give_back(small[1])
    assert tails.take(1) == small[1]
    for each in (*small, large):
        tails.give_back(each)
    assert tails.nbytes == 0


def test_rows_that_leave_free_the_views_of_stored_kv() -> None:
    plan = plan_for(PROMPT)
    executor = serve(plan.layout.schema).executor
    batch = Batch(executor.model)
    row = batch.join(plan.tokens, executor.fetch(part.encoding for part in plan.tokens.parts).kv_of)
    batch.step([(row, [7])])
    views = [weakref.ref(each.layers()) for each in batch.segments(row)]
    assert all(each() is each() is not None for each in views)

    batch.leave(row)
    del row
    assert [each() for each in views] == [None] * len(views)
