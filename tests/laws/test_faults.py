"""Stores that fail on purpose: the effect on an engine, and no effect on other keys."""

from __future__ import annotations

from promptcache import Engine
from promptcache.kv import Store
from promptcache.testing import ByteTokenizer
from promptcache.testing.cached import distance
from promptcache.testing.tiny_model import tiny_model
from tests.laws.faults import LosingStore, RefusingStore, after, always
from tests.laws.service import default_model

SCHEMA = '<schema name="s">Root.<module name="a">Text of a.</module><module name="b">Text of b.</module></schema>'
PROMPT = '<prompt schema="s"><a/><b/>Go</prompt>'


def engine(store: Store) -> Engine:
    """An engine over a store."""
    made = Engine(tiny_model(), ByteTokenizer(), store=store)
    made.add_schema(SCHEMA)
    return made


def memory() -> Store:
    """A store that does not fail."""
    return Store(default_model().shape)


def test_lost_encodings_are_made_again() -> None:
    """An engine whose store forgets everything answers as any other."""
    losing = engine(LosingStore(memory(), always))
    losing.logits(PROMPT)

    assert distance(losing.logits(PROMPT), engine(memory()).logits(PROMPT)) < 1e-10


def test_a_refusal_costs_no_answer() -> None:
    """The usage record reports a store that refuses; the request is answered, and the next one encodes again."""
    refusing = engine(RefusingStore(memory(), after(1)))
    completion = refusing.generate(PROMPT, max_new_tokens=4, do_sample=False)
    again = refusing.generate(PROMPT, max_new_tokens=4, do_sample=False)

    assert [fault for fault in completion.usage.faults if "refused" in fault]
    assert completion.token_ids == engine(memory()).generate(PROMPT, max_new_tokens=4, do_sample=False).token_ids
    assert again.token_ids == completion.token_ids
    assert distance(engine(RefusingStore(memory(), always)).logits(PROMPT), engine(memory()).logits(PROMPT)) < 1e-10
    assert 0 < again.usage.num_encoded_tokens < completion.usage.num_encoded_tokens
