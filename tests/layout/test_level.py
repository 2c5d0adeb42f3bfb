"""Laws of the level: a prompt is called exact if and only if it is exact."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.layout import Level
from tests import strategies
from tests.conftest import law_examples
from tests.layout.samples import level_of, plan_selection


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(data=st.data(), schema=strategies.exact_schemas(), tokenizer=strategies.TOKENIZERS)
def test_required_cached_modules_with_their_fillers_are_exact(data, schema, tokenizer):
    """A schema in which everything is required and cached, every slot at its filler, is exact."""
    plan = plan_selection(data.draw(strategies.exact_prompts(schema)), tokenizer)

    assert plan.level is Level.EXACT


A, B = '<module name="a">alpha</module>', '<module name="b">beta</module>'
SLOT = '<module name="a" required="true">x<parameter name="p" length="4" {}/>{}</module>'


@pytest.mark.parametrize(
    ("schema", "prompt", "level"),
    [
        pytest.param(A + B, "<a/>?", Level.EXACT, id="one module alone"),
        pytest.param(A + B, "<a/><b/>?", Level.EXACT, id="two, the second behind the first"),
        pytest.param(A + B + '<module name="c">c</module>', "<a/><b/><c/>?", Level.MODULAR, id="three"),
        pytest.param(A + B.replace(">", ' context="guaranteed">', 1), "<a/><b/>?", Level.MODULAR, id="two that have not seen each other"),
        pytest.param(A + '<module name="b" requires="a">beta</module>', "<a/><b/>?", Level.EXACT, id="requires"),
        pytest.param(A + '<module name="b" requires="a" context="own">beta</module>', "<a/><b/>?", Level.MODULAR, id="own"),
        pytest.param(A + B + '<scaffold modules="a b"/>', "<a/><b/>?", Level.EXACT, id="scaffold"),
        pytest.param(
            A + B + '<module name="c" requires="a">c</module><scaffold modules="a b"/>',
            "<a/><b/><c/>?",
            Level.MODULAR,
            id="outside a scaffold",
        ),
        pytest.param(
            A + B + '<module name="c" requires="a b">c</module><scaffold modules="a b"/>',
            "<a/><b/><c/>?",
            Level.MODULAR,
            id="superseded state seen",
        ),
        pytest.param(
            '<module name="a"><parameter name="p" length="4" placeholder="?"/>yyyyy</module>',
            "<a/>!",
            Level.MODULAR,
            id="placeholder first",
        ),
        pytest.param(A + '<module name="b" context="guaranteed"><text>b</text></module>', "<a/><b/>", Level.MODULAR, id="separator before one"),
        pytest.param(SLOT.format("", ""), '<a p="7"/>?', Level.EXACT, id="argument at the end"),
        pytest.param(SLOT.format("", "yyyyy"), '<a p="7"/>?', Level.MODULAR, id="argument in the middle"),
        pytest.param(SLOT.format("", "yyyy"), '<a p="7"/>?', Level.EXACT, id="only boundary tokens after the argument"),
        pytest.param(SLOT.format("", "y"), "<a/>?", Level.EXACT, id="slot left empty"),
        pytest.param(SLOT.format('placeholder="?"', "yyyyy"), "<a/>?", Level.MODULAR, id="placeholder seen"),
        pytest.param(SLOT.format('placeholder="?"', ""), "<a/>!", Level.EXACT, id="placeholder seen by nobody"),
        pytest.param(SLOT.format('placeholder="?"', "y"), '<a p="?"/>!', Level.EXACT, id="argument as the filler"),
        pytest.param(SLOT.format('default="d"', "y"), "<a/>!", Level.EXACT, id="default as the filler"),
        pytest.param(
            SLOT.format('placeholder="?"', "") + '<module name="b">b</module>', "<a/>!", Level.EXACT, id="one who saw it is absent"
        ),
        pytest.param(
            SLOT.format('placeholder="?"', "") + '<module name="b">bbbbb</module>', "<a/><b/>!", Level.MODULAR, id="one who saw it is there"
        ),
        pytest.param('<module name="a" cache="false">a</module>' + B, "<a/><b/>?", Level.MODULAR, id="new text below"),
        pytest.param(A + '<module name="b" cache="false">b</module>', "<a/><b/>?", Level.EXACT, id="new text above"),
    ],
)  # fmt: skip
def test_level_of(schema: str, prompt: str, level: Level):
    """The level of a small request is what its definition says."""
    assert level_of(f'<schema name="s">{schema}</schema>', f'<prompt schema="s">{prompt}</prompt>') is level


def test_a_last_token_that_is_fed_again_sees_everything():
    """A module of one token at the end is fed again and no longer counts as reused."""
    schema = '<schema name="s" separator="">' + A + '<module name="b">b</module></schema>'

    assert level_of(schema, '<prompt schema="s"><a/><b/></prompt>') is Level.EXACT
