"""Laws of encodings: what each run may see."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from promptcache.language.schema import Context
from promptcache.layout import Encoding, Layout, encodings, find_encoding, lay_out, scaffolds_in_use
from promptcache.testing import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.samples import layout_of, read


def seen(layout: Layout, made: tuple[Encoding, ...], module: str, scaffold: str | None = None) -> list[tuple[str, ...]]:
    """Return owner and scaffold of what the first run of a module sees."""
    encoding = find_encoding(made, layout.runs_of[module][0], scaffold)
    assert encoding is not None
    return [(layout.runs[made[index].run].module, *made[index].scaffolds) for index in encoding.context]


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas())
def test_a_plain_encoding_sees_the_guaranteed_runs_before_it(schema):
    """The context of a run is every cached run before it that is guaranteed with it, or its own module's only."""
    layout = lay_out(schema, ByteTokenizer())
    made = encodings(layout)

    for encoding in (encoding for encoding in made if not encoding.scaffolds):
        run = layout.runs[encoding.run]
        context = schema.modules[run.module].context if run.module else schema.source.context
        visible = {run.module} if context is Context.OWN else {"", *schema.guaranteed[run.module]}
        assert {made[index].run for index in encoding.context} == {
            other.index
            for other in layout.runs[: run.index]
            if other.cached and (other.module in visible or other.index == 0) and find_encoding(made, other.index, None)
        }


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas())
def test_contexts_come_first_and_lie_before(schema):
    """Every context has lower indices and only tokens at lower positions, in position order."""
    made = encodings(lay_out(schema, ByteTokenizer()))

    for index, encoding in enumerate(made):
        assert encoding.index == index
        assert list(encoding.context) == sorted(set(encoding.context))
        assert all(other < index for other in encoding.context)
        assert all(made[other].position_ids[-1] < encoding.position_ids[0] for other in encoding.context)


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas())
def test_contexts_are_closed(schema):
    """What an encoding sees in its plain state sees nothing that the encoding does not, unless contexts are narrowed."""
    made = encodings(lay_out(schema, ByteTokenizer()))
    contexts = {schema.source.context, *(module.context for module in schema.modules.values())}
    if contexts != {Context.GUARANTEED}:
        return

    for encoding in (encoding for encoding in made if not encoding.scaffolds):
        assert all(set(made[index].context) <= set(encoding.context) for index in encoding.context)


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas())
def test_every_cached_run_with_tokens_has_a_plain_encoding(schema):
    """Exactly the cached runs with text or filler have a plain encoding, which holds just that at its positions."""
    layout = lay_out(schema, ByteTokenizer())
    plain = {encoding.run: encoding for encoding in encodings(layout) if not encoding.scaffolds}

    for run in layout.runs:
        tokens = {
            piece.start + place: token_id
            for piece in run.pieces
            for place, token_id in enumerate(getattr(piece, "token_ids", ()) or getattr(piece, "filler_ids", ()))
        }
        if run.cached and tokens:
            assert dict(zip(plain[run.index].position_ids, plain[run.index].token_ids, strict=True)) == tokens
        else:
            assert run.index not in plain


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas())
def test_no_encoding_is_made_twice(schema):
    """No two encodings of a run have the same context."""
    made = encodings(lay_out(schema, ByteTokenizer()))

    assert len({(encoding.run, encoding.context) for encoding in made}) == len(made)


def test_own_context_is_bos_and_the_modules_earlier_runs():
    """A module with context="own" sees BOS and itself."""
    layout = layout_of(
        '<schema name="s">t<module name="a" context="own">x<module name="b">y</module>z</module></schema>'
    )
    made = encodings(layout)

    last = find_encoding(made, layout.runs_of["a"][1], None)
    assert last is not None
    assert [made[index].run for index in last.context] == [0, layout.runs_of["a"][0]]


def test_what_is_computed_anew_is_in_nobodys_context():
    """Runs with cache="false" have no encoding and are seen by none."""
    layout = layout_of('<schema name="s"><module name="a" required="true" cache="false">x</module>y</schema>')
    made = encodings(layout)

    assert [encoding.run for encoding in made] == [0, 2]
    assert made[1].context == (0,)


SCAFFOLD = """<schema name="s"><module name="a">aa<module name="k" required="true">kk</module><module name="o">oo</module></module>
<module name="m">mm</module><module name="b" requires="m">bb</module><scaffold name="f" modules="a b"/></schema>"""


def test_a_scaffold_covers_members_and_what_is_guaranteed_below_them():
    """Members and descendants guaranteed with them have a scaffold state where it differs from the plain one."""
    layout = layout_of(SCAFFOLD)

    assert {layout.runs[encoding.run].module for encoding in encodings(layout) if encoding.scaffolds} == {"b"}
    assert scaffolds_in_use(layout.schema.scaffolds, ("a", "a/k", "a/o", "m", "b")) == dict.fromkeys(
        ("a", "a/k", "b"), "f"
    )


def test_a_scaffold_state_sees_all_that_is_guaranteed_with_all_members():
    """In a scaffold each member sees the others before it, and the guaranteed rest in its plain state."""
    layout = layout_of(SCAFFOLD)

    assert seen(layout, encodings(layout), "b", "f") == [("",), ("a",), ("a/k",), ("m",)]


def test_scaffold_members_see_each_other_in_their_scaffold_states():
    """A later member sees an earlier one's scaffold state, where that has one of its own."""
    layout = layout_of(
        '<schema name="s"><module name="a">a</module><module name="b">b</module><module name="c">c</module>'
        '<scaffold name="f" modules="a b c"/></schema>'
    )

    assert seen(layout, encodings(layout), "c", "f") == [("",), ("a",), ("b", "f")]


def test_runs_outside_a_scaffold_see_plain_states():
    """A module that requires scaffold members is encoded against their plain states."""
    layout = layout_of(
        '<schema name="s"><module name="a">a</module><module name="b">b</module><module name="c" requires="a b">c</module>'
        '<scaffold name="f" modules="a b"/></schema>'
    )

    assert seen(layout, encodings(layout), "c") == [("",), ("a",), ("b",)]


TWO = read(
    '<schema name="s"><module name="a">a</module><module name="b">b</module><module name="c">c</module>'
    '<scaffold name="f" modules="a b"/><scaffold name="g" modules="b c"/></schema>'
)


def test_a_scaffold_needs_all_its_members():
    """A scaffold of which one member is missing is not used."""
    assert scaffolds_in_use(TWO.scaffolds, ("a", "c")) == {}


def test_the_first_declared_scaffold_takes_its_members():
    """Of two scaffolds that share a member the one declared first is used, and only that one."""
    assert scaffolds_in_use(TWO.scaffolds, ("a", "b", "c")) == {"a": "f", "b": "f"}


def test_a_scaffold_is_not_used_in_part():
    """A scaffold whose guaranteed descendants an earlier one has taken is not used at all."""
    schema = read(
        '<schema name="s"><module name="a">a<module name="k" required="true">k</module></module><module name="b">b</module>'
        '<module name="c">c</module><scaffold name="f" modules="a/k b"/><scaffold name="g" modules="a c"/></schema>'
    )

    assert scaffolds_in_use(schema.scaffolds, ("a", "a/k", "b", "c")) == {"a/k": "f", "b": "f"}


def test_equal_contexts_are_one_tuple():
    """Modules that see the same share their context, however many they are."""
    modules = "".join(f'<module name="m{index}">text</module>' for index in range(50))
    made = encodings(layout_of(f'<schema name="s">prefix{modules}</schema>'))

    assert len({id(encoding.context) for encoding in made[2:]}) == 1
