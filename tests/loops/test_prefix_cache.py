"""A prefix cache changes no logits: each row gets those of a forward pass over its tokens alone."""

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache import Engine, PrefixCache, frequent_prefixes
from promptcache.diagnostics import ContextLengthExceeded, InvalidValue
from promptcache.kv import KVShape, Store
from promptcache.model.model import Model
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cached import distance
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.families import random_model, usual_families
from tests.planted.registry import module_of

TOLERANCE = 1e-9
ENGINE = Engine(tiny_model(), ByteTokenizer())
TOKEN_BYTES = ENGINE.model.shape.token_bytes


@cache
def reference(row: tuple[int, ...], model: Model = ENGINE.model) -> torch.Tensor:
    """Return the logits of the last token of a row, without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = model.hf(input_ids=torch.tensor([row])).logits[0, -1]
    return logits


def padded(rows: Sequence[Sequence[int]], left: Sequence[bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows as one batch with its mask; each row is padded left or right, with tokens that do not exist."""
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), -100), torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        columns = slice(width - len(row), width) if left[index] else slice(0, len(row))
        ids[index, columns], mask[index, columns] = torch.tensor(row), 1
    return ids, mask


def check(prefixes: PrefixCache, rows: Sequence[tuple[int, ...]], left: Sequence[bool], model: Model) -> None:
    ids, mask = padded(rows, left)
    before = ids.clone(), mask.clone()
    hit = prefixes.get(ids, mask)
    out = model.hf(**hit.inputs)
    logits = hit.last_logits(out)
    prefixes.update(hit, out)

    assert all(torch.equal(*each) for each in zip((ids, mask), before, strict=True))
    assert logits.shape[0] == len(rows)
    assert [count < len(row) for count, row in zip(hit.num_cached, rows, strict=True)] == [True] * len(rows)
    for row, found in zip(rows, logits, strict=True):
        assert distance(found.detach(), reference(row, model)) < TOLERANCE


def texts(draw: random.Random) -> Callable[[], tuple[int, ...]]:
    """Return a function that makes rows: beginnings of a few texts, with other ends."""
    base = [[draw.randrange(3, 250) for _ in range(150)] for _ in range(3)]
    base.append(base[0][:70] + base[1])

    def row() -> tuple[int, ...]:
        kept = draw.choice(base)[: draw.choice([1, 5, 63, 64, 65, 100, 130, draw.randrange(1, 150)])]
        return (*kept, *(draw.randrange(3, 250) for _ in range(draw.choice([0, 0, 1, 3, 20]))))

    return row


def serving(model: Model, num_tokens: int) -> Any:
    memory = Store(model.shape, budget_bytes=num_tokens * model.shape.token_bytes)
    return SimpleNamespace(model=model, store=memory)


def run_example(seed: int) -> None:
    draw = random.Random(seed)
    num_tokens = draw.choice([1, 63, 64, 128, 200, 400, 5_000])
    prefixes = PrefixCache(serving(ENGINE.model, num_tokens))
    row = texts(draw)
    for _ in range(4):
        if draw.random() < 0.3:
            prefixes.build([row()])
        rows = [row() for _ in range(draw.randrange(1, 6))]
        check(prefixes, rows, [draw.random() < 0.5 for _ in rows], ENGINE.model)
        assert prefixes.nbytes <= num_tokens * TOKEN_BYTES


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(seed=st.integers(0, 2**32))
def test_any_batches_give_the_logits_of_no_cache(seed: int) -> None:
    """Uneven rows, paddings, evictions, and prefixes built before change no logits."""
    run_example(seed)


def late_positions(patch: pytest.MonkeyPatch) -> None:
    """New tokens behind known ones stand one position late."""
    prefix_cache = module_of("promptcache.loops.prefix_cache")
    original = prefix_cache.step_cache

    def step_cache(opened: Any, num_layers: int) -> Any:
        opened.positions = opened.positions + bool(opened.tokens.segments)
        return original(opened, num_layers)

    patch.setattr(prefix_cache, "step_cache", step_cache)


def wrong_key(patch: pytest.MonkeyPatch) -> None:
    """A row counts one token more as known than it shares."""
    history = module_of("promptcache.rows.history")
    original = history.num_shared
    patch.setattr(
        history, "num_shared", lambda known, wanted: min(original(known, wanted) + 1, len(known), len(wanted))
    )


@pytest.mark.parametrize("plant", [late_positions, wrong_key])
def test_planted_faults_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    def examples() -> None:
        for seed in range(10):
            run_example(seed)

    with pytest.raises(AssertionError):
        examples()


@pytest.mark.parametrize("family", usual_families())
def test_windows_caps_sinks_and_groups_are_kept(family: str) -> None:
    """The same for every family that takes rows, with rows longer than its window."""
    model = Model(random_model(family, torch.float64))
    engine = Engine(model, ByteTokenizer())
    prefixes, draw = PrefixCache(engine), random.Random(family)
    shared = [draw.randrange(5, 250) for _ in range(70)]
    for _ in range(2):
        rows = [(*shared[:size], *(draw.randrange(5, 250) for _ in range(3))) for size in (70, 66, 9, 0)]
        ids, mask = padded(rows, [True] * 4)
        hit = prefixes.get(ids, mask)
        out = model.hf(**hit.inputs)
        prefixes.update(hit, out)
        for row, found in zip(rows, hit.last_logits(out), strict=True):
            assert distance(found.detach(), reference(row, model)) < 1e-6
    assert hit.num_cached[:2] == (70, 66)


def test_what_is_known_is_not_computed_again() -> None:
    """A second batch computes only tokens behind the known prefixes; a prefix that rows share is computed once."""
    prefixes = PrefixCache(ENGINE)
    shared = tuple(range(10, 110))
    rows = [(*shared, each, each) for each in (3, 4, 5)]

    first = prefixes.get(*padded(rows, [True] * 3))
    out = ENGINE.model.hf(**first.inputs)
    num_stored = prefixes.update(first, out)
    second = prefixes.get(*padded([*rows, (*shared, 6)], [True] * 4))

    assert (first.num_cached, num_stored) == ((100, 100, 100), 6)
    assert second.num_cached == (101, 101, 101, 100)
    assert second.inputs["input_ids"].tolist() == [[3, 4, 5, 6]]


def test_frequent_prefixes_are_ranked_by_what_they_save() -> None:
    """Each prefix counts the tokens behind the one above it, for all lists but the first; the law holds by brute force."""
    system, first, second = list(range(40)), [100] * 50, [200] * 60
    lists = [
        [*system, *first, 1],
        [*system, *first, 2],
        [*system, *first, 3],
        [*system, *second, 4],
        [*system, *second, 5],
    ]
    lists.append([7] * 20)

    found = frequent_prefixes(lists)

    assert [(len(each.token_ids), each.num_lists, each.num_saved_tokens) for each in found] == [
        (40, 5, 160),
        (90, 3, 100),
        (100, 2, 60),
    ]
    assert frequent_prefixes(lists, min_lists=3) == found[:2]
    assert frequent_prefixes(lists, max_prefixes=1) == found[:1]
    prefixes = PrefixCache(ENGINE)
    assert prefixes.build(found) == 40 + 50 + 60
    assert prefixes.build(found) == 0
    assert prefixes.get(torch.tensor([lists[0]])).num_cached == (90,)


@settings(max_examples=50)
@given(lists=st.lists(st.lists(st.integers(0, 1), max_size=8), max_size=8), least=st.integers(1, 4))
def test_saved_tokens_are_those_of_a_trie(lists: list[list[int]], least: int) -> None:
    """What all frequent prefixes save is what a trie saves on tokens of branches of at least `min_tokens`."""
    found = frequent_prefixes(lists, min_tokens=least)

    cut = [tuple(each[:-1]) for each in lists]
    branches = {
        tuple(a[:size])
        for i, a in enumerate(cut)
        for b in cut[i + 1 :]
        for size in [
            next((n for n, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
        ]
        if size >= least
    }
    assert {each.token_ids for each in found} == branches
    assert {each.token_ids: each.num_lists for each in found} == {
        each: sum(row[: len(each)] == each for row in cut) for each in branches
    }
    above = {each: max([len(b) for b in branches if b != each and each[: len(b)] == b], default=0) for each in branches}
    assert all(
        each.num_saved_tokens == (len(each.token_ids) - above[each.token_ids]) * (each.num_lists - 1) for each in found
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: frequent_prefixes(["text"]), InvalidValue, "token_lists.0.='text' is not allowed"),  # type: ignore[list-item]
        (lambda: PrefixCache(ENGINE.model), InvalidValue, "an Engine is expected"),
        (lambda: frequent_prefixes([], min_lists=1), InvalidValue, "min_lists=1 is not allowed"),
        (lambda: frequent_prefixes([], max_prefixes=0), InvalidValue, "max_prefixes=0 is not allowed"),
        (
            lambda: PrefixCache(ENGINE).get(torch.ones((1, 4097), dtype=torch.long)),
            ContextLengthExceeded,
            r"input_ids\[0\] has 4,097 tokens",
        ),
    ],
)
def test_wrong_values_are_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    """The message has the limit and the value."""
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([5, 6], None, "a tensor of token IDs"),
        (torch.tensor([5, 6]), None, r"input_ids\[None\]"),
        (torch.tensor([[0.5]]), None, "as int64"),
        (torch.zeros((0, 2), dtype=torch.long), None, r"\[0, 2\]: at least one token"),
        (torch.tensor([[5, 6], [5, 10_000]]), None, r"input_ids\[1\] has 10000"),
        (torch.tensor([[5, -1]]), None, r"input_ids\[0\] has -1"),
        (torch.tensor([[5, 6]]), [[1, 1]], "a tensor"),
        (torch.tensor([[5, 6]]), torch.ones(2), r"a tensor \[1, 2\] of zeros and ones"),
        (torch.tensor([[5, 6, 7]]), torch.tensor([[1, 0, 1]]), r"attention_mask\[0\]=\[1, 0, 1\] is not allowed"),
        (
            torch.tensor([[5, 6], [5, 6]]),
            torch.tensor([[0, 1], [0, 0]]),
            r"attention_mask\[1\]=\[0, 0\] is not allowed",
        ),
        (torch.tensor([[5, 6]]), torch.tensor([[1, 2]]), r"attention_mask\[0\]=\[1, 2\] is not allowed"),
    ],
)
def test_wrong_batches_are_refused(ids: Any, mask: Any, message: str) -> None:
    """The message names the row."""
    with pytest.raises(InvalidValue, match=message):
        PrefixCache(ENGINE).get(ids, mask)


def test_hits_are_of_one_cache_and_one_pass() -> None:
    """Another cache's hit, a hit used twice, and an output that is not its own are refused."""
    first, second = PrefixCache(ENGINE), PrefixCache(Engine(tiny_model(), ByteTokenizer()))
    ids = torch.tensor([[5, 6, 7]])
    hit, other = first.get(ids), first.get(ids)
    with pytest.raises(InvalidValue, match="not the output"):
        first.update(hit, None)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InvalidValue, match=r"torch.autocast\('cpu'"):
        ENGINE.model.hf(**hit.inputs)
    out = ENGINE.model.hf(**hit.inputs)

    with pytest.raises(InvalidValue, match="another PrefixCache"):
        second.update(hit, out)
    with pytest.raises(InvalidValue, match="not the output"):
        first.update(other, out)
    with pytest.raises(InvalidValue, match="one forward pass"):
        ENGINE.model.hf(**hit.inputs)
    with pytest.raises(InvalidValue, match="the result of get"):
        first.update(None, out)  # type: ignore[arg-type] # what is tested
    first.update(hit, out)
    with pytest.raises(InvalidValue, match="used before"):
        first.update(hit, out)


@pytest.mark.parametrize("is_of_engine", [False, True], ids=["a plain model", "a model of another engine"])
def test_another_model_is_refused(is_of_engine: bool) -> None:
    """Inputs on another model object raise an error before KV is computed, and serve their own model afterwards."""
    other = Engine(tiny_model(), ByteTokenizer()).model.hf if is_of_engine else random_model("llama", torch.float64)
    prefixes, row = PrefixCache(ENGINE), tuple(range(10, 90))
    prefixes.build([row])
    hit = prefixes.get(torch.tensor([[*row, 3, 4]]))
    with torch.no_grad(), pytest.raises(InvalidValue, match=r"belongs to engine\.model\.hf"):
        other(**hit.inputs)
    with torch.no_grad():
        out = ENGINE.model.hf(**hit.inputs)
    assert prefixes.update(hit, out) == 2
    assert distance(out.logits[0, -1], reference((*row, 3, 4))) < TOLERANCE


def test_gradients_do_not_reach_the_cache() -> None:
    prefixes = PrefixCache(ENGINE)
    row = tuple(range(5, 80))
    with torch.enable_grad():
        for _ in range(2):
            check(prefixes, [row], [True], ENGINE.model)

    segments = prefixes.get(torch.tensor([row])).inputs["past_key_values"].layers[0].step.tokens.segments
    assert [each.kv.keys.requires_grad for each in segments] == [False]


def test_hits_are_freed_without_the_garbage_collector() -> None:
    """A hit that is dropped holds no KV any longer, so that its room can be used."""
    prefixes = PrefixCache(ENGINE)
    ids = torch.arange(5, 80)[None]
    gc.disable()
    try:
        for _ in range(2):
            hit = prefixes.get(ids)
            out = ENGINE.model.hf(**hit.inputs)
            prefixes.update(hit, out)
            packed = weakref.ref(hit._pass)
            del hit, out
            assert packed() is None
    finally:
        gc.enable()


def test_threads_share_a_cache() -> None:
    prefixes = PrefixCache(serving(ENGINE.model, 400))

    def work(seed: int) -> None:
        draw = random.Random(seed)
        row = texts(random.Random(0))
        for _ in range(10):
            rows = [row() for _ in range(draw.randrange(1, 4))]
            check(prefixes, rows, [True] * len(rows), ENGINE.model)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_bytes_are_those_that_the_budget_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU memory comes in eight sizes for each power of two; a cache has the bytes that the store says."""
    monkeypatch.setattr(KVShape, "is_on_gpu", True)
    shown = serving(ENGINE.model, 2000)
    prefixes = PrefixCache(shown)
    check(prefixes, [tuple(range(5, 222))], [True], ENGINE.model)

    assert prefixes.nbytes == shown.store.nbytes() > 217 * TOKEN_BYTES
