"""Promotion: modules of a prompt are encoded together, as a declared scaffold would do it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import InvalidValue, PromptCacheError
from promptcache.engine import Engine
from promptcache.kv import MemoryStore
from promptcache.language import CheckedSchema, Selection, check_schema
from promptcache.layout import Encoding, Level, find_state, lay_out, run_states
from promptcache.runtime import SchemaState, promoted, schema_state
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests import strategies
from tests.conftest import law_examples
from tests.laws.engine_laws import ENGINE_LAWS
from tests.laws.level_oracle import true_level, wrong_contexts, wrong_states
from tests.laws.service import serve

TOKENIZER = ByteTokenizer()
SCHEMA = """<schema name="s" context="guaranteed">Root.<module name="a">alpha</module><module name="b">beta</module>
<module name="c">gamma</module><module name="new" cache="false">late</module></schema>"""
DECLARED = SCHEMA.replace("</schema>", '<scaffold modules="{}"/></schema>')
GREEDY = {"do_sample": False, "max_new_tokens": 4}


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine with the schema, nothing encoded yet."""
    made = Engine(tiny_model(), ByteTokenizer())
    made.add_schema(SCHEMA)
    return made


def prompt(*modules: str) -> str:
    return f'<prompt schema="s">{"".join(f"<{each}/>" for each in modules)}Well?</prompt>'


def used(engine: Engine, *modules: str) -> list[Encoding]:
    return [each.part.encoding for each in engine.plan(prompt(*modules)).reuse]


def in_state(state: SchemaState, modules: Sequence[str], scaffold: str) -> list[Encoding | None]:
    runs = [state.layout.runs[index] for path in modules for index in state.layout.runs_of[path]]
    found = [find_state(state.states, run.index, scaffold) for run in runs if run.cached]
    return [each and each.encoding for each in found]


def test_a_promoted_prompt_is_exact_and_says_so(engine: Engine) -> None:
    """After a promotion a prompt with the same modules is exact, equals the reference, and reports the promotion."""
    before = engine.generate(prompt("a", "b"), **GREEDY)
    engine.promote(prompt("a", "b"))
    after = engine.generate(prompt("a", "b"), **GREEDY)

    assert (before.level, before.usage.promoted) == (Level.MODULAR, False)
    assert (after.level, after.usage.promoted) == (Level.EXACT, True)
    assert not engine.generate(prompt("a", "c"), **GREEDY).usage.promoted
    assert engine.logits(prompt("a", "b")).allclose(engine.reference(prompt("a", "b")), atol=1e-4)
    assert [each.start for each in engine.plan(prompt("a", "b")).prefill] == [
        each.start for each in before.plan.prefill
    ]


@pytest.mark.parametrize("second", [("b", "a"), ("a", "b", "new")], ids=["twice", "with an uncached module"])
def test_the_same_combination_is_promoted_once(engine: Engine, second: Sequence[str]) -> None:
    """A second promotion of the same cached modules adds nothing."""
    first = engine.promote(prompt("a", "b"))
    state = engine._catalog.find("s")
    again = engine.promote(prompt(*second))

    assert (first.num_encodings, first.num_tokens, again.num_encodings, again.nbytes) == (1, len("\nbeta"), 0, 0)
    assert first.modules == again.modules == ("a", "b")
    assert engine._catalog.find("s") is state


@pytest.mark.parametrize("modules", [("a", "b"), ("a",), ("new",), ()], ids="+".join)
def test_what_a_scaffold_covers_is_not_promoted(engine: Engine, modules: Sequence[str]) -> None:
    """Modules of a declared scaffold, or that attend to each other already, give nothing to promote."""
    engine.add_schema(DECLARED.format("a b"))

    assert engine.promote(prompt(*modules)).num_encodings == 0
    assert not any(each.promoted for each in engine.schemas["s"].scaffolds)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("text", [SCHEMA, DECLARED.format("a b"), DECLARED.format("b c")], ids=["none", "a b", "b c"])
def test_the_largest_promotion_serves(engine: Engine, text: str, order: Sequence[int]) -> None:
    """Whatever the order of promotions and the declared scaffolds, each promoted prompt is exact."""
    engine.add_schema(text)
    combinations = [("a", "b"), ("b", "c"), ("a", "b", "c")]
    for index in order:
        engine.promote(prompt(*combinations[index]))

    assert [engine.plan(prompt(*each)).level for each in combinations] == [Level.EXACT] * 3


def test_a_small_promotion_leaves_a_larger_scaffold(engine: Engine) -> None:
    """A declared scaffold over more modules goes on serving prompts that have all of them."""
    engine.add_schema(DECLARED.format("a b c"))
    before = used(engine, "a", "b", "c")
    engine.promote(prompt("a", "b"))

    assert used(engine, "a", "b", "c") == before
    assert engine.plan(prompt("a", "b")).level is Level.EXACT


def test_a_promotion_over_its_limit_is_refused(engine: Engine) -> None:
    """The error names both numbers, and nothing is promoted."""
    nbytes = Engine(engine.model, ByteTokenizer())
    nbytes.add_schema(SCHEMA)
    size = nbytes.promote(prompt("a", "b")).nbytes

    with pytest.raises(PromptCacheError, match=rf"adds {size} bytes .* promote_bytes={size - 1}"):
        engine.promote(prompt("a", "b"), promote_bytes=size - 1)
    assert engine.plan(prompt("a", "b")).level is Level.MODULAR
    assert engine.promote(prompt("a", "b"), promote_bytes=size).nbytes == size
    (report,) = engine.warm("s")
    assert report.nbytes == size + nbytes.model.shape.token_bytes * (report.num_encoded_tokens - len("\nbeta"))


def test_demoting_restores_the_state_and_frees_the_kv(engine: Engine) -> None:
    """Only KV that a promotion needed is freed: by demoting, and by replacing or removing the schema."""
    engine.warm()
    keys, before = set(engine.store.keys()), used(engine, "a", "b")
    for end in (
        lambda: engine.demote(prompt("a", "b")),
        lambda: engine.demote(schema="s"),
        lambda: engine.add_schema(SCHEMA),
    ):
        engine.promote(prompt("a", "b"))
        engine.warm()
        assert len(set(engine.store.keys()) - keys) == 1
        end()
        assert set(engine.store.keys()) == keys
        assert used(engine, "a", "b") == before
    engine.promote(prompt("a", "b"))
    engine.warm()
    engine.remove_schema("s")
    assert not set(engine.store.keys())


def test_demoting_counts(engine: Engine) -> None:
    """`demote` returns the number of promotions that it undid, and takes a prompt or a schema."""
    engine.promote(prompt("a", "b"))
    engine.promote(prompt("b", "c"))

    assert engine.demote(prompt("a", "c")) == 0
    assert engine.demote(prompt("a", "b")) == 1
    assert (engine.demote(schema="s"), engine.demote(schema="s")) == (1, 0)
    for wrong in ({}, {"prompt": prompt("a"), "schema": "s"}):
        with pytest.raises(InvalidValue, match="either a prompt, or the name of a schema"):
            engine.demote(**wrong)


def test_a_request_in_flight_keeps_its_state(engine: Engine) -> None:
    """A stream that began before a promotion and a demotion gives the answer of its own plan."""
    expected = engine.generate(prompt("a", "b"), **GREEDY).token_ids
    with engine.stream(prompt("a", "b"), **GREEDY) as stream:
        next(stream, None)
        engine.promote(prompt("a", "b"))
        engine.warm()
        engine.demote(schema="s")
        for _ in stream:
            pass

    assert stream.completion is not None
    assert stream.completion.token_ids == expected


def test_threads_promote_together(engine: Engine) -> None:
    """Promotions and demotions of several threads are all kept."""
    pairs = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c")]
    threads = [threading.Thread(target=lambda pair=pair: engine.promote(prompt(*pair))) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert {each.members for each in engine.schemas["s"].scaffolds} == set(pairs)


def test_promoted_kv_is_evicted_and_encoded_again() -> None:
    """With a small memory, promoted KV is evicted like any other, and the answer does not change."""
    model = tiny_model()
    shape = Engine(model, ByteTokenizer()).model.shape
    small = Engine(model, ByteTokenizer(), store=MemoryStore(shape, budget_bytes=24 * shape.token_bytes))
    small.add_schema(SCHEMA)
    small.promote(prompt("a", "b"))
    first = small.logits(prompt("a", "b"))
    small.logits(prompt("b", "c"))
    small.logits(prompt("c"))

    assert small.generate(prompt("a", "b"), **GREEDY).usage.num_encoded_tokens > 0
    assert small.logits(prompt("a", "b")).allclose(first, atol=1e-5)


@pytest.mark.law
@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=law_examples())
def test_a_promotion_is_a_declared_scaffold(data: st.DataObject, schema: CheckedSchema) -> None:
    """The states of random schemas after promotions are those of the same scaffolds in the schema, and serve."""
    state = schema_state(schema, TOKENIZER, 1 << 20)
    for _ in range(data.draw(st.integers(1, 3))):
        selection = data.draw(strategies.prompts(schema))
        state = promoted(state, with_schema(selection, state.schema))
    members = [path for path in selection.modules if schema.modules[path].cache]

    assert not list(wrong_contexts(state.layout, state.states))
    if members:
        checked = check_schema(schema.source.scaffold(*members, name="declared"))
        layout = lay_out(checked, TOKENIZER)
        declared = SchemaState(schema=checked, layout=layout, states=run_states(layout), codec=state.codec)
        plan = state.plan(with_schema(selection, state.schema), TOKENIZER)
        served = {each.run: each.part.encoding for each in plan.reuse if layout.runs[each.run].module}
        runs = [index for path in members for index in layout.runs_of[path]]
        expected = dict(zip(runs, in_state(declared, members, "declared"), strict=True))
        assert all(encoding == expected[run] for run, encoding in served.items())
        assert plan.level is true_level(plan)
        assert not list(wrong_states(plan, state.states))


@pytest.mark.law
@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=law_examples(0.25))
def test_promoted_answers_keep_the_laws(data: st.DataObject, schema: CheckedSchema) -> None:
    """Every law of one prompt holds after promotions, for the promoted prompt and for others."""
    first, second = data.draw(strategies.prompts(schema)), data.draw(strategies.prompts(schema))
    promoting = promoted(schema_state(schema, TOKENIZER, 1 << 20), first)
    service = serve(promoting.schema)

    for law in ENGINE_LAWS:
        for selection in (first, second):
            law.check(service, with_schema(selection, promoting.schema))


def with_schema(selection: Selection, schema: CheckedSchema) -> Selection:
    """Return the same prompt for another version of its schema."""
    return replace(selection, schema=schema)
