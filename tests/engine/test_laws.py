"""The laws of docs/architecture.md over random schemas and prompts in float64, and over requests with all options of `generate`."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from promptcache.kv import FileTier, Store
from promptcache.language import CheckedSchema
from promptcache.layout import Level
from promptcache.rows.coalesce import Copies
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests import strategies
from tests.conftest import law_examples, law_pairs, some_of
from tests.engine.test_collections import SCHEMAS as SEEING_PREVIOUS
from tests.laws.engine_laws import ENGINE_LAWS, cached_is_reference, exact_is_models_own, exact_is_plain
from tests.laws.histories import history_machine
from tests.laws.laws import Law
from tests.laws.service import default_model, serve
from tests.requests.answers import requests_are_the_reference
from tests.requests.plans import count_pairs, possible_pairs, reason_against
from tests.requests.workloads import FIRST_SEED, run_over, workloads
from tests.strategies.collections import collection_schemas


def in_tiers(folder: Path, budget_bytes: int | None = None) -> Store:
    shape = default_model().shape
    return Store(shape, (FileTier(folder),), budget_bytes=budget_bytes, host_bytes=2_000)


KINDS = {
    "any": (strategies.schemas(), 0.75),
    "coalesced": (strategies.schemas(), 0.25),
    "collections": (collection_schemas(), 0.25),
    "previous": (SEEING_PREVIOUS, 0.25),
    "in tiers": (strategies.schemas(), 0.32),
}
"""Random schemas, and the share of all pairs that is drawn of them."""


@pytest.mark.law
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.name)
def test_laws_hold_for_random_schemas(law: Law, kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """So they do if segments are coalesced, and over tiers: empty, with little memory, and after a restart."""
    schemas, share = KINDS[kind]

    @given(data=st.data(), schema=schemas, tokenizer=strategies.TOKENIZERS, small_tokens=st.sampled_from([8, 64]))
    @settings(max_examples=law_pairs(share))
    def holds(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer, small_tokens: int) -> None:
        selection = data.draw(strategies.prompts(schema))
        copies = Copies(default_model(), small_tokens=small_tokens) if kind == "coalesced" else None
        folder = tmp_path_factory.mktemp("kept") if kind == "in tiers" else None
        for budget in (10**6, 3_000, 0) if folder else (None,):
            store = None if folder is None else in_tiers(folder, budget)
            service = serve(schema, store=store, copies=copies, tokenizer=tokenizer)
            note(f"level: {service.plan(selection).level}")
            law.check(service, selection)

    holds()


@pytest.mark.law
@given(data=st.data(), schema=strategies.exact_schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.25))
def test_all_required_schemas_are_exact(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """A prompt with every module and every slot at its filler is exact and equals plain causal prefill."""
    selection = data.draw(strategies.exact_prompts(schema))
    service = serve(schema, tokenizer=tokenizer)

    assert service.plan(selection).level is Level.EXACT
    cached_is_reference(service, selection)
    exact_is_plain(service, selection)
    exact_is_models_own(service, selection)


SCHEMAS = (
    """<schema name="one">Root.<module name="a">Text of a <parameter name="p" length="6" placeholder="filler"/> goes on.
<module name="b">Text of b.</module></module><union name="u"><module name="c">The c.</module><module name="d">Some d.</module>
</union><module name="e" cache="false">New text.</module></schema>""",
    """<schema name="two">Root.<module name="a">Text of a.</module><module name="x">x x x</module><module name="y">y y</module>
<scaffold modules="x y"/><module name="z" requires="x">z z z z</module></schema>""",
)
SCHEMAS = (*SCHEMAS, SCHEMAS[0].replace("Text of b", "Another b"))
PROMPTS = {
    "one": (
        *("<a/>", '<a p="filler"/>', '<a p="other"/><c/>', "<a><b/></a><d/>", "<e/><c/>", '<a p="ab"><b/></a><e/>'),
        "<d/>",
    ),
    "two": ("<a/>", "<x/>", "<x/><y/>", "<a/><x/><z/>", "<y/>", "<x/><y/><z/><a/>"),
}


@pytest.mark.law
def test_machine_of_histories() -> None:
    documents = [
        (text, [f'<prompt schema="{name}">{each} And now?</prompt>' for each in PROMPTS[name]])
        for text, name in zip(SCHEMAS, ("one", "two", "one"), strict=True)
    ]

    run_state_machine_as_test(
        history_machine(documents), settings=settings(max_examples=law_examples(0.2), stateful_step_count=40)
    )


NUM_PARTS = 24
MAX_WORKLOADS = 2000


@pytest.mark.law
@pytest.mark.long
@pytest.mark.parametrize("part", some_of(range(NUM_PARTS), 2))
def test_requests_with_any_options_are_answered_by_the_reference(part: int) -> None:
    """Each request of a random workload gets what transformers decodes from logits of the reference."""
    seeds = range(FIRST_SEED + part, FIRST_SEED + NUM_PARTS * law_examples(0.0104, thorough=0.1), NUM_PARTS)

    run_over(workloads(), requests_are_the_reference, seeds)


@pytest.mark.long
def test_every_pair_of_features_is_drawn() -> None:
    """Random workloads have every pair of features in one request, and none of those that cannot be together."""
    counts: Counter[tuple[str, str]] = Counter()
    missing = [*possible_pairs()]
    for start in range(0, MAX_WORKLOADS, 100):  # what is drawn depends on the modules that are loaded
        if missing:
            run_over(workloads(), partial(count_pairs, counts), range(start, start + 100))
            missing = [pair for pair in missing if not counts[pair]]

    assert missing == []
    assert [pair for pair in counts if pair[0] != pair[1] and reason_against(*pair)] == []
