"""Laws of run variants: what each run may see."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language import Placement
from promptcache.layout import VariantKind, lay_out, run_variants, scaffolds_in_use
from tests import strategies
from tests.conftest import law_examples
from tests.layout.samples import read


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_every_cached_run_with_tokens_has_a_plain_variant(schema, tokenizer):
    """Exactly the cached runs with text or filler have a plain variant, which holds just that; if fixed, at its places."""
    layout = lay_out(replace(schema, positions=None), tokenizer, placement=Placement.FIXED)
    plain = {variant.run: variant.encoding for variant in run_variants(layout) if variant.kind is VariantKind.PLAIN}

    for run in layout.runs:
        tokens = {
            piece.start + place: token_id for piece in run.pieces for place, token_id in enumerate(piece.token_ids)
        }
        if run.cached and tokens:
            assert dict(zip(plain[run.index].position_ids, plain[run.index].token_ids, strict=True)) == tokens
        else:
            assert run.index not in plain


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas(), codec=st.sampled_from(["full", "int8"]), tokenizer=strategies.TOKENIZERS)
def test_no_variant_is_made_twice(schema, codec, tokenizer):
    """No two variants of a run see the same at the same distances, and one codec is used for all, contexts included."""
    variants = run_variants(lay_out(schema, tokenizer), codec)
    encodings = [variant.encoding for variant in variants]

    assert len({(variant.run, variant.encoding) for variant in variants}) == len(variants)
    assert {each.codec for encoding in encodings for each in (encoding, *(p.encoding for p in encoding.context))} <= {
        codec
    }


TWO = read(
    '<schema name="s"><module name="a">a</module><module name="b">b</module><module name="c">c</module>'
    '<scaffold name="f" modules="a b"/><scaffold name="g" modules="b c"/></schema>'
)


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
