"""Engines over stores with budgets, tiers and codecs: laws hold, work stays constant, and faults are reported."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.kv import FileTier, MemoryStore, Tier, TieredStore
from promptcache.language import CheckedSchema, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests import strategies
from tests.conftest import law_examples
from tests.laws.engine_laws import ENGINE_LAWS
from tests.laws.laws import Law
from tests.laws.service import default_model, serve

MODULES = [f"m{number:02}" for number in range(20)]
BOOKS = check_schema(
    parse_schema(
        '<schema name="books">The shelf holds:'
        + "".join(
            f'<module name="{name}">{name} tells {"of a long way " * (number % 3 + 1)}.</module>'
            for number, name in enumerate(MODULES)
        )
        + "</schema>"
    )
)


def in_tiers(folder: Path, budget_bytes: int | None = None) -> TieredStore:
    """Return a store in memory, in host memory and on disk."""
    shape = default_model().shape
    memory = MemoryStore(shape, budget_bytes=budget_bytes)
    return TieredStore(memory, (FileTier(folder),), host=MemoryStore(shape, budget_bytes=2_000, tier=Tier.HOST))


@pytest.mark.law
@pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.name)
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.05))
def test_laws_hold_through_tiers(
    tmp_path_factory: pytest.TempPathFactory,
    law: Law,
    data: st.DataObject,
    schema: CheckedSchema,
    tokenizer: ByteTokenizer,
) -> None:
    """Every law of one prompt holds over a tiered store: empty, without room in memory, and after a restart."""
    selection = data.draw(strategies.prompts(schema))
    folder = tmp_path_factory.mktemp("kept")
    for budget in (10**6, 3_000, 0):
        law.check(serve(schema, store=in_tiers(folder, budget), tokenizer=tokenizer), selection)


@pytest.mark.slow
@pytest.mark.long
def test_novel_combinations_do_not_wear_a_budget_out() -> None:
    """Over 500 different combinations under a third of the needed memory, hits and work stay constant, and the budget holds."""
    chance = random.Random(0)
    combinations = list(itertools.combinations(MODULES, 3))
    chance.shuffle(combinations)
    model = default_model()
    whole = sum(each.num_tokens for each in serve(BOOKS).state.encodings) * model.shape.token_bytes
    store = MemoryStore(model.shape, budget_bytes=whole // 3)
    service = serve(BOOKS, store=store)

    encoded, hits = [], []
    for names in combinations[:500]:
        prompt = f'<prompt schema="books">{"".join(f"<{name}/>" for name in names)}?</prompt>'
        tokens = service.plan(resolve_prompt(parse_prompt(prompt), BOOKS)).tokens
        wanted = {part.encoding for part in tokens.parts}
        fetched = service.executor.fetch(wanted)
        encoded.append(fetched.num_encoded_tokens)
        hits.append(len(wanted) - len(fetched.encoded))
        assert store.nbytes() <= whole // 3

    assert sum(hits[-100:]) >= 0.9 * sum(hits[:100])
    assert sum(encoded[-100:]) <= 1.1 * sum(encoded[:100])
    assert sum(hits) > 500
