"""Laws of run variants: what each run may see."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language import Placement
from promptcache.layout import Layout, Variant, VariantKind, find_variant, lay_out, run_variants, scaffolds_in_use
from tests import strategies
from tests.conftest import law_examples
from tests.layout.samples import layout_of, read


def seen(
    layout: Layout, variants: tuple[Variant, ...], module: str, scaffold: str | None = None
) -> list[tuple[str, ...]]:
    """Return owner and scaffold of what the first run of a module sees."""
    variant = find_variant(variants, layout.runs_of[module][0], scaffold)
    assert variant is not None
    return [(layout.runs[variants[index].run].module, *variants[index].scaffolds) for index in variant.sees]


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_contexts_come_first_and_lie_before(schema, tokenizer):
    """A variant sees variants with lower indices and only tokens at lower positions, each once and in position order."""
    variants = run_variants(lay_out(schema, tokenizer))

    for index, variant in enumerate(variants):
        assert variant.index == index
        assert len(variant.sees) == len(set(variant.sees))
        assert all(other < index for other in variant.sees)
        own_first = variant.encoding.position_ids[0]
        assert [part.encoding for part in variant.encoding.context] == [
            variants[other].encoding for other in variant.sees
        ]
        assert all(part.last < own_first for part in variant.encoding.context)


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas(), codec=st.sampled_from(["full", "int8"]), tokenizer=strategies.TOKENIZERS)
def test_an_encoding_attends_to_all_tokens_of_the_variants_that_its_variant_sees(schema, codec, tokenizer):
    """The context of an encoding is the whole encodings of the variants that are seen; one codec is used for all."""
    layout = lay_out(schema, tokenizer)
    variants = run_variants(layout, codec)

    for variant in variants:
        context = variant.encoding.context
        assert variant.encoding.codec == codec
        assert [part.encoding for part in context] == [variants[other].encoding for other in variant.sees]
        assert all(part.is_whole for part in context)
        if layout.placement is Placement.FIXED:
            assert all(part.shift == 0 for part in context)
        else:
            own = (*context, variant.encoding.whole)
            assert [each.first for each in own] == [0, *accumulate(each.num_tokens for each in context)]


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_every_cached_run_with_tokens_has_a_plain_variant(schema, tokenizer):
    """Exactly the cached runs with text or filler have a plain variant, which holds just that; if fixed, at its places."""
    layout = lay_out(replace(schema, positions=None), tokenizer, placement=Placement.FIXED)
    plain = {variant.run: variant.encoding for variant in run_variants(layout) if variant.kind is VariantKind.PLAIN}

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
@given(schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_no_variant_is_made_twice(schema, tokenizer):
    """No two variants of a run see the same at the same distances."""
    variants = run_variants(lay_out(schema, tokenizer))

    assert len({(variant.run, variant.encoding) for variant in variants}) == len(variants)


def test_own_context_is_bos_and_the_modules_earlier_runs():
    """A module with context="own" sees BOS and itself."""
    layout = layout_of(
        '<schema name="s">t<module name="a" context="own">x<module name="b">y</module>z</module></schema>'
    )
    variants = run_variants(layout)

    last = find_variant(variants, layout.runs_of["a"][1], None)
    assert last is not None
    assert [variants[index].run for index in last.sees] == [0, layout.runs_of["a"][0]]


def test_what_is_computed_anew_is_in_nobodys_context():
    """Runs with cache="false" have no variant and are seen by none."""
    layout = layout_of('<schema name="s"><module name="a" required="true" cache="false">x</module>y</schema>')
    variants = run_variants(layout)

    assert [variant.run for variant in variants] == [0, 2]
    assert variants[1].sees == (0,)
    assert variants[1].encoding.context == (variants[0].encoding.whole,)


SCAFFOLD = """<schema name="s"><module name="a">aa<module name="k" required="true">kk</module><module name="o">oo</module></module>
<module name="m">mm</module><module name="b" requires="m">bb</module><scaffold name="f" modules="a b"/></schema>"""


def test_a_scaffold_covers_members_and_what_is_guaranteed_below_them():
    """Members and descendants guaranteed with them have a scaffold variant where it differs from the plain one."""
    layout = layout_of(SCAFFOLD)

    assert {layout.runs[variant.run].module for variant in run_variants(layout) if variant.scaffolds} == {"b"}
    assert scaffolds_in_use(layout.schema.scaffolds, ("a", "a/k", "a/o", "m", "b")) == dict.fromkeys(
        ("a", "a/k", "b"), "f"
    )


def test_a_scaffold_variant_sees_all_that_is_guaranteed_with_all_members():
    """In a scaffold each member sees the others before it, and the guaranteed rest in its plain variant."""
    layout = layout_of(SCAFFOLD)

    assert seen(layout, run_variants(layout), "b", "f") == [("",), ("a",), ("a/k",), ("m",)]


def test_scaffold_members_see_each_other_in_their_scaffold_variants():
    """A later member sees an earlier one's scaffold variant, where that has one of its own."""
    layout = layout_of(
        '<schema name="s"><module name="a">a</module><module name="b">b</module><module name="c">c</module>'
        '<scaffold name="f" modules="a b c"/></schema>'
    )

    assert seen(layout, run_variants(layout), "c", "f") == [("",), ("a",), ("b", "f")]


def test_runs_outside_a_scaffold_see_plain_variants():
    """A module that requires scaffold members is encoded against their plain variants."""
    layout = layout_of(
        '<schema name="s"><module name="a">a</module><module name="b">b</module><module name="c" requires="a b">c</module>'
        '<scaffold name="f" modules="a b"/></schema>'
    )

    assert seen(layout, run_variants(layout), "c") == [("",), ("a",), ("b",)]


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
