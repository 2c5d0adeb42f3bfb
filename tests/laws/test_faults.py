"""Stores that fail on purpose: the effect on an engine, and no effect on other keys."""

from __future__ import annotations

import time

import pytest

from promptcache import Engine
from promptcache.kv import Store
from promptcache.testing import ByteTokenizer
from promptcache.testing.cached import distance
from promptcache.testing.tiny_model import tiny_model
from tests.laws.faults import CorruptingStore, DelayingStore, LosingStore, RefusingStore, after, by_seed
from tests.laws.service import default_model

SCHEMA = '<schema name="s">Root.<module name="a">Text of a.</module><module name="b">Text of b.</module></schema>'
PROMPT = '<prompt schema="s"><a/><b/>Go</prompt>'
ALWAYS, NEVER = by_seed(0, 1.0), by_seed(0, 0.0)


def engine(store: Store) -> Engine:
    """An engine over a store."""
    made = Engine(tiny_model(), ByteTokenizer(), store=store)
    made.add_schema(SCHEMA)
    return made


def memory() -> Store:
    """A store that does not fail."""
    return Store(default_model().shape)


@pytest.mark.parametrize("kind", [LosingStore, CorruptingStore, RefusingStore])
def test_what_is_not_hit_is_served(kind) -> None:  # type: ignore[no-untyped-def]
    """A wrapper that hits no key changes nothing."""
    assert distance(engine(kind(memory(), NEVER)).logits(PROMPT), engine(memory()).logits(PROMPT)) < 1e-10


def test_lost_encodings_are_made_again() -> None:
    """An engine whose store forgets everything answers as any other."""
    losing = engine(LosingStore(memory(), ALWAYS))
    losing.logits(PROMPT)

    assert distance(losing.logits(PROMPT), engine(memory()).logits(PROMPT)) < 1e-10


def test_corrupt_encodings_show() -> None:
    """KV with wrong numbers changes the answer, far beyond rounding."""
    corrupt = engine(CorruptingStore(memory(), ALWAYS))

    assert distance(corrupt.logits(PROMPT), engine(memory()).logits(PROMPT)) > 1e-3


def test_a_refusal_costs_no_answer() -> None:
    """The usage record reports a store that refuses; the request is answered, and the next one encodes again."""
    refusing = engine(RefusingStore(memory(), after(1)))
    completion = refusing.generate(PROMPT, max_new_tokens=4, do_sample=False)
    again = refusing.generate(PROMPT, max_new_tokens=4, do_sample=False)

    assert [fault for fault in completion.usage.faults if "refused" in fault]
    assert completion.token_ids == engine(memory()).generate(PROMPT, max_new_tokens=4, do_sample=False).token_ids
    assert again.token_ids == completion.token_ids
    assert distance(engine(RefusingStore(memory(), ALWAYS)).logits(PROMPT), engine(memory()).logits(PROMPT)) < 1e-10
    assert 0 < again.usage.num_encoded_tokens < completion.usage.num_encoded_tokens


def test_delays_are_waited_for() -> None:
    """A late answer is late and right."""
    store = memory()
    late = DelayingStore(store, ALWAYS, 0.02)
    started = time.perf_counter()

    assert late.get("0" * 64).handle is None
    assert time.perf_counter() - started >= 0.02


def test_seeds_hit_a_share_of_keys() -> None:
    """A seed hits about its share of keys, and always the same ones."""
    keys = [f"key {number}" for number in range(1000)]
    hit = [key for key in keys if by_seed(3, 0.2)(key)]

    assert 150 < len(hit) < 250
    assert hit == [key for key in keys if by_seed(3, 0.2)(key)]
