"""Tests of the final text of a schema: separators, the open turn and inherited options."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language import Context, Whitespace
from promptcache.language.checked import CheckedParameter, FinalText
from tests.conftest import law_examples
from tests.language.documents import checked, outline
from tests.strategies import schemas


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('one<module name="m">two</module>three', ["one", ["m", "\ntwo"], "\nthree"]),
        ('<module name="m">one</module>two', [["m", "one"], "\ntwo"]),
        ('one<module name="m"><doc>d</doc></module>two', ["one", ["m"], "\ntwo"]),
        ('one<union><module name="a">A</module><module name="b">B</module></union>', ["one", ["union", ["a", "\nA"], ["b", "\nB"]]]),
        ('one<module name="m"><module name="n">two</module>three</module>', ["one", ["m", ["m/n", "\ntwo"], "\nthree"]]),
        ('one<module name="m"><parameter name="p" length="2"/></module>', ["one", ["m", "\n", "<p>"]]),
        ('one<system>two</system>three<module name="m">four</module>', ["one", ["system", "two"], "three", ["m", "\nfour"]]),
        ('<user><module name="m">one</module>two</user>x', [["user", ["m", "one"], "\ntwo"], "x"]),
        ('one<module name="m"><user>two</user></module>three', ["one", ["m", ["user", "two"]], "three"]),
        ('one<doc>d</doc>two', ["one\ntwo"]),
        ('<doc>d</doc><module name="m"/>one', [["m"], "one"]),
        ('<module name="m"><module name="n"/>one</module>two', [["m", ["m/n"], "one"], "\ntwo"]),
        ('one<module name="m" separator=", ">two<module name="n">three</module></module>four', ["one", ["m", "\ntwo", ["m/n", ", three"]], "\nfour"]),
    ],
)  # fmt: skip
def test_every_block_but_the_first_begins_with_the_separator(body, expected):
    """The separator begins the first text of a block at any depth, and never comes next to a header or footer."""
    assert outline(checked(f'<schema name="s">{body}</schema>').children) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param('of <parameter name="p" length="2"/> days', ["of", "▁<p>", " days"], id="text before a slot"),
        pytest.param('of<parameter name="p" length="2"/>', ["of", "<p>"], id="no space"),
        pytest.param('a <parameter name="p" length="2"/> <parameter name="q" length="2"/>', ["a", "▁<p>", "▁<q>"], id="two slots"),
        pytest.param('<parameter name="p" length="2"/><parameter name="q" length="2"/>', ["<p>", "<q>"], id="side by side"),
        pytest.param('a<module name="m" separator=" "><parameter name="p" length="2"/></module>', ["a", ["m", "\n", "<p>"]], id="the separator of the parent"),
        pytest.param('<module name="m" separator=" ">a<module name="n"><parameter name="p" length="2"/></module></module>', [["m", "a", ["m/n", "▁<p>"]]], id="a separator that is a space"),
        pytest.param('<module name="m" whitespace="preserve">a  <parameter name="p" length="2"/></module>', [["m", "a ", "▁<p>"]], id="one of two spaces"),
        pytest.param('<module name="m" whitespace="preserve"> <parameter name="p" length="2"/></module>', [["m", "▁<p>"]], id="a text of one space"),
        pytest.param('<text>a </text><parameter name="p" length="2"/>', ["a", "▁<p>"], id="exact text"),
        pytest.param('<user><parameter name="p" length="2"/>?</user>', [["user…", "<p>", "?"]], id="first in a turn"),
        pytest.param('<module name="m">a&#9;<parameter name="p" length="2"/>&#160;<parameter name="q" length="2"/></module>', [["m", "a\t", "<p>", "\xa0", "<q>"]], id="other whitespace"),
        pytest.param('<module name="m" whitespace="preserve">a <module name="n"/><parameter name="p" length="2"/></module>', [["m", "a ", ["m/n"], "\n", "<p>"]], id="another module between"),
    ],
)  # fmt: skip
def test_the_space_before_a_slot_belongs_to_the_slot(body, expected):
    """The last space of a text directly before a slot moves to the slot, and text that becomes empty goes."""

    def written(items):
        return [
            f"{'▁' * len(item.lead)}<{item.name}>" if isinstance(item, CheckedParameter) else
            written_in(item) if not isinstance(item, FinalText) else item.text
            for item in items
        ]  # fmt: skip

    def written_in(item):
        return [*outline((replace(item, children=()),))[0], *written(item.children)]

    assert written(checked(f'<schema name="s">{body}</schema>').children) == expected


@pytest.mark.parametrize(
    ("body", "is_open", "separator"),
    [
        ("<user>x</user>", True, "\n"),
        ("<user/>", True, ""),
        ("<user>x</user><doc>d</doc>", True, "\n"),
        ('<user>x</user><module name="m"><doc>d</doc></module>', True, "\n"),
        ("<user>x</user>y", False, ""),
        ('<user>x</user><parameter name="p" length="1"/>', False, ""),
        ("<user>x</user><assistant/>", False, ""),
        ("<system>x</system>", False, ""),
        ('<module name="m"><user>x</user></module>', False, ""),
        ('<user><module name="m"/></user>', True, ""),
        ("x", False, "\n"),
        ('<module name="m"><parameter name="p" length="1"/></module>', False, "\n"),
        ('<collection name="c"/>', False, "\n"),
        ('<module name="m"/><union><module name="n"/></union><doc>d</doc>', False, ""),
        ("", False, ""),
    ],
)
def test_the_text_of_a_prompt_is_a_block_of_what_it_continues(body, is_open, separator):
    """It continues a last user turn at the top level, or a schema without turns, and gets a separator behind a block."""
    schema = checked(f'<schema name="s">{body}</schema>')
    assert any(getattr(item, "open", False) for item in schema.children) == is_open
    assert schema.open_separator == separator


@settings(max_examples=law_examples())
@given(schema=schemas())
def test_texts_are_never_empty_and_never_side_by_side(schema):
    """Texts are never empty and never adjacent."""

    def check(items):
        assert all(item.text for item in items if isinstance(item, FinalText))
        pairs = pairwise(items)
        assert not any(isinstance(one, FinalText) and isinstance(other, FinalText) for one, other in pairs)
        for item in items:
            check(getattr(item, "children", ()) or getattr(item, "members", ()))

    check(schema.children)


@given(mode=st.sampled_from(Whitespace), separator=st.sampled_from(["", "\\n\\n", "--"]))
def test_options_are_inherited(mode, separator):
    """A module inherits the options of its parent unless it sets its own."""
    inner = '<module name="c"><module name="d" cache="true" context="guaranteed"/></module>'
    outer = f'<module name="a" cache="false" context="own"><module name="b">{inner}</module></module>'
    schema = checked(f'<schema name="s" whitespace="{mode}" separator="{separator}">{outer}</schema>')
    assert {path: (module.cache, module.context) for path, module in schema.modules.items()} == {
        "a": (False, Context.OWN),
        "a/b": (False, Context.OWN),
        "a/b/c": (False, Context.OWN),
        "a/b/c/d": (True, Context.GUARANTEED),
    }
