"""Laws of the layout: the positions of runs and slots."""

import re
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import SchemaError, Severity
from promptcache.language import Placement, check_schema, parse_schema
from promptcache.layout import VariantKind, check_length, lay_out, run_variants, scaffolds_in_use
from tests import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.samples import layout_of, read

SCAFFOLD = '<parameter name="p" length="3" scaffold="12345" default="6"/>'
CHOICE = 'Is <parameter name="p" length="3" type="choice" choices="abc|abcdef"/>'
LONG_CHOICE = r"'abcdef' of parameter 'p' is 7 tokens with the space before it, its slot holds 4: length="


@pytest.mark.parametrize(
    ("inside", "code", "column", "message"),
    [
        ('<parameter name="p" length="3" default="12345"/>', "PC502", None, "the default of parameter 'p' is 5 tokens, its slot holds 3"),
        ('<parameter name="p" length="3" placeholder="12345"/>', "PC502", None, "the placeholder of parameter 'p' is 5 tokens, its"),
        ('<parameter name="p" length="1" scaffold="ab" default="ab"/>', "PC502", None, "the default of parameter 'p' is 2 tokens"),
        ('<module name="a" reserve="3">12345</module>', "PC505", None, "5 positions.*reserves 3"),
        (SCAFFOLD, "PC511", 42, "is 5 tokens, its slot holds 3"),
        (CHOICE, "PC516", 58, LONG_CHOICE),
    ],
)  # fmt: skip
def test_what_is_longer_than_its_room_is_told(inside, code, column, message):
    """A filler is refused. A placeholder of the paper, a choice, and text beyond its reserve have a warning at their place."""
    try:
        diagnostics = layout_of(f'<schema name="s">\n{inside}</schema>').warnings
    except SchemaError as error:
        diagnostics = error.diagnostics
    (found,) = (each for each in diagnostics if each.code == code)

    assert (found.severity is Severity.WARNING) is (code != "PC502")
    assert (found.span.line, column) == (2, column and found.span.column)
    assert re.search(message, found.message)
    assert code != "PC516" or found.help == 'write length="6" or shorten the choice'


def test_a_placeholder_of_the_paper_is_cut_to_its_slot():
    (slot,) = layout_of(f'<schema name="s">{SCAFFOLD}</schema>').runs[-1].slots

    assert (slot.token_ids, slot.default_ids) == (ByteTokenizer().tokenize("123"), ByteTokenizer().tokenize("6"))
    assert layout_of('<schema name="s"><parameter name="p" length="5" scaffold="12345"/></schema>').warnings == ()


def test_faults_of_a_file_are_told_once():
    file = '<schema name="f"><module name="m"><parameter name="p" length="1" default="ab"/></module></schema>'
    twice = '<schema name="s"><module name="a"><include href="f.xml"/></module>'
    twice += '<module name="b"><include href="f.xml"/></module></schema>'
    with pytest.raises(SchemaError) as caught:
        lay_out(check_schema(parse_schema(twice, folder={"f.xml": file})), ByteTokenizer())
    assert [(each.code, each.span.source) for each in caught.value.diagnostics] == [("PC502", "f.xml")]


def test_a_schema_longer_than_the_model_is_refused_with_both_numbers():
    closed = layout_of(
        '<schema name="s" context="guaranteed"><module name="a" reserve="9">123</module><module name="b">45</module></schema>'
    )
    fixed = replace(closed, placement=Placement.FIXED)

    for layout, needed in ((closed, 4), (fixed, 13)):
        check_length(layout, run_variants(layout), needed)
        with pytest.raises(SchemaError, match=f"needs {needed} positions, the model has {needed - 1}"):
            check_length(layout, run_variants(layout), needed - 1)


@pytest.mark.slow
def test_ten_thousand_modules_take_ten_times_as_long_as_a_thousand():
    seconds = []
    for count in (1_000, 10_000):
        schema = read(
            '<schema name="s">' + "".join(f'<module name="m{i}">text {i}</module>' for i in range(count)) + "</schema>"
        )
        start = time.process_time()
        lay_out(schema, ByteTokenizer())
        seconds.append(time.process_time() - start)

    assert seconds[1] < 30 * seconds[0]


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
    assert scaffolds_in_use(TWO.scaffolds, ("a", "b", "c")) == {"a": "f", "b": "f"}


def test_a_scaffold_is_not_used_in_part():
    """A scaffold whose guaranteed descendants an earlier one has taken is not used at all."""
    schema = read(
        '<schema name="s"><module name="a">a<module name="k" required="true">k</module></module><module name="b">b</module>'
        '<module name="c">c</module><scaffold name="f" modules="a/k b"/><scaffold name="g" modules="a c"/></schema>'
    )

    assert scaffolds_in_use(schema.scaffolds, ("a", "a/k", "b", "c")) == {"a/k": "f", "b": "f"}
