"""`context="previous"`: modules are encoded behind the module before them in a prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache import Engine
from promptcache.language import CheckedSchema, Context, check_schema
from promptcache.layout import lay_out, make_plan, run_variants
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests import strategies
from tests.conftest import law_examples
from tests.engine import asking
from tests.engine.promoting import GREEDY
from tests.laws.level_oracle import true_level, wrong_contexts, wrong_variants
from tests.laws.service import serve
from tests.layout.samples import choose, read
from tests.strategies.collections import collection_schemas

SCHEMA = """
<schema name="s">
  Answer.
  <module name="a">alpha</module>
  <module name="b">beta</module>
  Middle.
  <module name="c">gamma <parameter name="n" length="6"/></module>
  <module name="d" context="own">delta</module>
  <module name="e" cache="false">epsilon</module>
  <module name="f">zeta</module>
  <collection name="notes" context="previous"><module name="x">xi</module><module name="y">ypsilon</module></collection>
</schema>"""


def engine_of() -> Engine:
    return asking.engine_of(schema=SCHEMA, history=False)


ENGINE = engine_of()


def prompt(modules: str) -> str:
    """Return a prompt with modules, whose names have one letter; members are x and y."""
    members = "".join(f"<{each}/>" for each in modules if each in "xy")
    others = "".join(f"<{each}/>" for each in modules if each not in "xy")
    return f'<prompt schema="s">{others}{f"<notes>{members}</notes>" if members else ""}?</prompt>'


def seen(modules: str) -> dict[str, str]:
    """Return what the encoding of each module of a prompt has seen."""
    plan = ENGINE.plan(prompt(modules))
    found = {}
    for piece in plan.reused:
        if module := piece.run.module:
            context = piece.source.encoding.context
            found[module] = "".join(
                chr(token) for part in context for token in part.token_ids[part.start :] if token < 256
            )
    return found


def of_previous(schemas: SearchStrategy[CheckedSchema]) -> SearchStrategy[CheckedSchema]:
    """Draw schemas whose modules see the previous one, unless they say otherwise."""
    return schemas.map(lambda schema: check_schema(replace(schema.source, context=Context.PREVIOUS)))


_MODULES = [f'<module name="{name}">text {name}</module>' for name in "abcdef"]
FOUR = f'<schema name="s">Root.{"".join(_MODULES[:4])}</schema>'
MANY = st.just(read(f'<schema name="m">{"".join(_MODULES)}</schema>'))
"""Random schemas seldom have prompts with three modules that see one another."""
SCHEMAS = of_previous(st.one_of(strategies.schemas(includes=False), collection_schemas(), MANY))


@pytest.mark.law
@given(data=st.data(), schema=SCHEMAS, tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.5))
def test_variants_and_levels_are_right(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """Each run has seen exactly what the independent reference says."""
    service = serve(schema, tokenizer=tokenizer)
    selection = data.draw(strategies.prompts(schema))
    plan = service.plan(selection)

    assert not [*wrong_contexts(service.served.layout, service.served.variants)]
    assert plan.level is true_level(plan)
    if not selection.members:
        assert not [*wrong_variants(plan, service.tokenizer)]


def test_a_module_sees_the_one_before_it_and_what_is_always_there() -> None:
    """Not the ones before that; so do members of a collection."""
    assert seen("fyx") == {
        "f": "Answer.\nMiddle.",
        "notes/y": "Answer.\nMiddle.\nzeta",
        "notes/x": "Answer.\nMiddle.\nypsilon",
    }


def test_members_that_do_not_see_the_previous_one_are_passed_over() -> None:
    """They come in any order, so a module behind them sees the module before them; a collection inherits no context."""
    engine = asking.engine_of(
        schema='<schema name="s">Root.<module name="a">alpha</module><module name="b">beta</module>'
        '<collection name="notes"><module name="x">xi</module><module name="y">ypsilon</module></collection>'
        '<module name="c">gamma</module></schema>'
    )
    with_member, without = (
        engine.plan(f'<prompt schema="s"><a/><b/>{members}<c/>?</prompt>').reused[-1].source
        for members in ("<notes><y/><x/></notes>", "")
    )

    assert with_member.encoding == without.encoding
    assert engine._catalog.find("s").schema.modules["notes"].context is Context.GUARANTEED


@pytest.mark.law
@given(
    data=st.data(),
    schema=of_previous(strategies.schemas(includes=False) | MANY),
    tokenizer=strategies.TOKENIZERS,
)
@settings(max_examples=law_examples(0.5))
def test_warming_knows_what_prompts_need(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """What a prompt without members reuses was encoded by warming with pairs."""
    service = serve(schema, tokenizer=tokenizer)
    selection = data.draw(strategies.prompts(schema))
    warmed = {pair.encoding for pair in service.served.pair_encodings()}

    assert {part.encoding for part in service.plan(selection).tokens.parts} <= {*service.served.encodings, *warmed}


def test_pairs_are_encoded_once() -> None:
    """A new prompt whose neighbours have stood together encodes nothing, also of a schema with another module."""
    engine = engine_of()
    for modules in ("ab", "bc", "cf", "bf", "fx", "xy"):
        engine.generate(prompt(modules), **GREEDY)

    assert engine.generate(prompt("abcf"), **GREEDY).usage.num_encoded_tokens == 0
    assert engine.generate(prompt("bcfxy"), **GREEDY).usage.num_encoded_tokens == 0
    assert engine.generate(prompt("af"), **GREEDY).usage.num_encoded_tokens == len("\nzeta")
    engine.add_schema(SCHEMA.replace("gamma", "delta"))
    assert engine.generate(prompt("abf"), **GREEDY).usage.num_encoded_tokens == 0


def test_warmed_pairs_are_not_encoded_again() -> None:
    """Warming leaves pairs out unless they are asked for."""
    engine = engine_of()
    (plain,), (pairs,) = engine.warm(), engine.warm(pairs=True)

    assert pairs.nbytes == engine.store.nbytes()
    assert plain.num_encoded == plain.num_encodings < pairs.num_encodings == plain.num_encodings + pairs.num_encoded
    for modules in ("abcdef", "af", "bdf", "acf"):
        assert engine.generate(prompt(modules), **GREEDY).usage.num_encoded_tokens == 0


def test_a_pair_that_needs_too_many_positions_is_not_made() -> None:
    """A filler may be longer than what is in the prompt. Then the module is used as if it were the first."""
    filler = f'<parameter name="n" length="40" placeholder="{40 * "n"}"/>'
    schema = read(f'<schema name="s"><module name="a">a{filler}</module><module name="b">{30 * "b"}</module></schema>')
    contexts = []
    for limit in (100, 60):
        layout = lay_out(schema, ByteTokenizer(), max_positions=limit)
        plan = make_plan(
            choose(schema, '<prompt schema="s"><a/><b/></prompt>'), layout, run_variants(layout), ByteTokenizer()
        )
        assert plan.stop < 60
        contexts.append(len(plan.reused[-1].source.encoding.context))

    assert contexts == [2, 1]


def test_fixed_positions_have_pairs_too() -> None:
    """A module is encoded at its place, behind the one before it at its place."""
    engine = asking.engine_of(schema=FOUR, positions="fixed")
    last = [engine.plan(prompt(each)).tokens.parts[-1] for each in ("a", "c", "acd")]

    assert last[2].encoding.context[-1] == last[1]
    assert last[2].encoding.position_ids == engine.plan(prompt("d")).tokens.parts[-1].position_ids
    assert last[0] not in last[2].encoding.context
