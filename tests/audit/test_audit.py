"""Audits: shares add up, what changes nothing has no share, and a planted cause is named first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import import_module
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from promptcache import Engine
from promptcache.audit import AdviceKind, Audit, Cause, mean_divergence
from promptcache.audit.advice import MIN_GAIN_SHARE
from promptcache.audit.report import equal_gain, largest_first
from promptcache.diagnostics import LEAST_NATS, ContextLengthExceeded
from promptcache.layout import Level
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.real_model import FOLDER

NOISE = 1e-9  # the tiny model computes in float64
PLACES = 6


class JoiningTokenizer(ByteTokenizer):
    """Bytes, except that "bc" is one token, the byte 1: a text that is cut between the two letters has other tokens."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        return super().tokenize(text.replace("bc", "\x01"))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return super().detokenize(token_ids).replace("\x01", "bc")


@pytest.fixture(scope="module")
def engine() -> Engine:
    """A tiny model with random weights over bytes."""
    return Engine(tiny_model(), ByteTokenizer())


@pytest.fixture(scope="module")
def sharp() -> Engine:
    """A tiny model with surer answers, so that changes of little effect are advised, too."""
    model = tiny_model()
    with torch.no_grad():
        model.hf.lm_head.weight.mul_(12)
    return Engine(model, ByteTokenizer())


def audit(engine: Engine, schema: str, prompt: str, context: str = "guaranteed") -> Audit:
    engine.add_schema(f'<schema name="s" context="{context}">{schema}</schema>')
    return engine.audit(f'<prompt schema="s">{prompt}</prompt>', max_new_tokens=PLACES)


def test_shares_add_up_to_the_distance(engine: Engine) -> None:
    """The shares of the rungs sum to the divergence of the request, which is positive for a modular one."""
    made = audit(
        engine,
        'Root.<module name="a">alpha</module><module name="b">beta <parameter name="p" length="9"/> goes</module>',
        '<a/><b p="xyz"/>Well?',
    )

    assert made.level is Level.MODULAR
    assert made.divergence > 1e-4
    assert sum(each.share for each in made.rungs) == pytest.approx(made.divergence, abs=1e-15)
    assert made.rungs[-1].divergence == made.divergence
    assert [each.cause for each in made.rungs] == list(Cause)


@pytest.mark.parametrize(
    ("schema", "prompt"),
    [
        ('Root.<module name="a">alpha</module>', "<a/>Well?"),
        ('<module name="a">alpha</module><module name="b" requires="a">beta</module>', "<a/><b/>Well?"),
        ('<module name="a">alpha</module><module name="b">beta</module><scaffold modules="a b"/>', "<a/><b/>"),
        ('<module name="a">alpha</module><module name="b" cache="false">beta</module>', "<a/><b/>Well?"),
    ],
)
def test_an_exact_request_without_gaps_is_plain_prefill(engine: Engine, schema: str, prompt: str) -> None:
    """All distances, shares and gains are zero within rounding, and nothing is advised."""
    made = audit(engine, schema, prompt)

    assert (made.level, made.same_answer, made.advice) == (Level.EXACT, True, ())
    assert made.divergence < NOISE
    assert all(abs(each.share) < NOISE for each in made.rungs)
    assert all(abs(each.gain) < NOISE for each in made.modules)


def test_a_rung_that_changes_nothing_has_no_share(engine: Engine) -> None:
    """Bytes are cut nowhere, and without slots there are no gaps: both shares are exactly zero."""
    made = audit(engine, '<module name="a">alpha</module><module name="b" context="own">beta</module>', "<a/><b/>?")

    assert [each.share for each in made.rungs[:2]] == [0.0, 0.0]
    assert made.rungs[2].share > LEAST_NATS


def test_two_modules_are_plain_prefill_by_default(engine: Engine) -> None:
    """By default a module attends to the one before it: two modules are exact, and the third has not seen the first."""
    modules = "".join(f'<module name="{name}">{name} text</module>' for name in "abc")
    two, three = (audit(engine, modules, f"{used}?", "previous") for used in ("<a/><b/>", "<a/><b/><c/>"))

    assert (two.level, three.level) == (Level.EXACT, Level.MODULAR)
    assert two.divergence < NOISE < three.rungs[2].share
    gains = {each.module: each.gain for each in three.modules}
    assert gains["c"] == pytest.approx(three.divergence, abs=NOISE)
    assert gains["b"] == pytest.approx(0.0, abs=NOISE)


def test_modules_gain_what_context_costs(engine: Engine) -> None:
    """A module alone has nothing to gain; computing the only module again that lacks context removes its share."""
    made = audit(engine, '<module name="a">alpha</module><module name="b">beta</module>', "<a/><b/>?")
    gains = {each.module: each.gain for each in made.modules}

    assert made.modules[0].module == "b"
    assert gains["b"] == pytest.approx(made.divergence, abs=NOISE)
    assert gains["a"] == pytest.approx(0.0, abs=NOISE)


@pytest.mark.parametrize(
    ("context", "first", "required", "attended"),
    [("guaranteed", "", "a", "'a'"), ("previous", '<module name="z">zeta</module>', "a", "the module before 'a', too")],
)
def test_advice_keeps_what_it_promises(sharp: Engine, context: str, first: str, required: str, attended: str) -> None:
    """Advice gains at least the margin; following it reduces the divergence by what was promised."""
    schema = first + '<module name="a">alpha</module><module name="b"{}>beta <parameter name="p" length="9"/></module>'
    content = f'{"<z/>" * bool(first)}<a/><b p="xyz"/>?'
    before = audit(sharp, schema.format(""), content, context)
    prompt = f'<prompt schema="s">{content}</prompt>'
    by_kind = {each.kind: each for each in before.advice}
    assert all(each.gain >= max(LEAST_NATS, MIN_GAIN_SHARE * before.divergence) for each in before.advice)

    following = audit(sharp, schema.format(f' requires="{required}"'), content, context)
    sharp.add_schema(f'<schema name="s" context="{context}">{schema.format("")}</schema>')
    repaired = sharp.audit(prompt, max_new_tokens=PLACES, repair="first-16")
    repair = next(each for each in before.advice if each.kind is AdviceKind.REPAIR and "first-16" in each.words)
    requires = by_kind[AdviceKind.REQUIRES]

    assert repaired.divergence == pytest.approx(before.divergence - repair.gain, abs=NOISE)
    num_more = sharp.plan(prompt, repair="first-16").num_new_tokens - sharp.plan(prompt).num_new_tokens
    assert f"{num_more} tokens more" in repair.price
    assert requires.words == f"write requires=\"{required}\" at module 'b', so that it attends to {attended}"
    assert following.divergence == pytest.approx(before.divergence - requires.gain, abs=NOISE)
    assert before.divergence == pytest.approx(by_kind[AdviceKind.PROMOTE].gain, abs=NOISE)
    num_tokens = sharp.promote(prompt)
    assert f"{num_tokens} tokens more" in by_kind[AdviceKind.PROMOTE].price


@pytest.mark.parametrize(
    ("schema", "prompt"),
    [
        ('Root.<module name="a">alpha</module><module name="b">beta</module>', "<a/><b/>?"),
        (
            '<module name="a">alpha</module><module name="b">beta</module><module name="c">gamma</module>'
            '<module name="d" requires="a b c">delta <parameter name="p" length="9"/> and'
            ' <parameter name="q" length="9"/></module>',
            '<a/><b/><c/><d p="xyz" q="xyz"/>?',
        ),
        ('Root.<module name="a">alpha</module><module name="b" requires="a">beta</module>', "<a/><b/>?"),
    ],
)
def test_rounding_changes_no_order(monkeypatch: pytest.MonkeyPatch, engine: Engine, schema: str, prompt: str) -> None:
    """On a machine that rounds differently an audit has the same causes, modules and advice in the same order."""
    chance = random.Random(0)

    def rounded(here: torch.Tensor, there: torch.Tensor) -> float:
        return max(0.0, mean_divergence(here, there) * (1 + chance.uniform(-1e-6, 1e-6)) + chance.uniform(-1e-7, 1e-7))

    def order() -> list[list[str]]:
        made = audit(engine, schema, prompt)
        causes = [each.cause.value for each in made.causes]
        return [causes, [each.module for each in made.modules], [each.words for each in made.advice]]

    expected = order()
    monkeypatch.setattr(import_module("promptcache.audit.ladder"), "mean_divergence", rounded)
    for _ in range(6):
        assert order() == expected


def test_of_equal_gains_the_lowest_price_is_first(engine: Engine) -> None:
    """Where each change removes the whole distance, advice follows the kinds; repairs, the number of new tokens."""
    made = audit(engine, '<module name="a">alpha</module><module name="b">be</module>', "<a/><b/>?")

    assert [each.gain for each in made.advice] == pytest.approx([made.divergence] * len(made.advice), rel=0.01)
    assert [each.kind for each in made.advice] == sorted(
        (each.kind for each in made.advice), key=list(AdviceKind).index
    )
    assert {AdviceKind.PROMOTE, AdviceKind.REPAIR, AdviceKind.REQUIRES} == {each.kind for each in made.advice}
    repairs = [int(each.price.split()[3]) for each in made.advice if each.kind is AdviceKind.REPAIR]
    assert repairs == sorted(repairs)


@pytest.mark.law
@given(gains=st.lists(st.floats(-2, 3), max_size=12), distance=st.floats(0, 3))
def test_the_order_of_gains(gains: list[float], distance: float) -> None:
    """Equal gains keep their order; a gain that is larger by more than all steps between comes first."""
    step = equal_gain(distance)
    order = largest_first(range(len(gains)), gains.__getitem__, distance)

    assert sorted(order) == list(range(len(gains)))
    for (place, left), (later, right) in combinations(enumerate(order), 2):
        assert left < right or abs(gains[left] - gains[right]) > step
        assert gains[left] >= gains[right] - step * max(1, len(gains) - 1), (place, later)


def test_an_audit_leaves_no_kv_of_its_trials(engine: Engine) -> None:
    """The engine's store has the KV of the request and of nothing that was tried."""
    made = Engine(engine.model, ByteTokenizer())
    modules = '<module name="a">alpha</module><module name="b">beta</module>'
    made.add_schema(f'<schema name="s" context="guaranteed">{modules}</schema>')
    made.warm()
    keys = set(made.store.keys())
    advice = made.audit('<prompt schema="s"><a/><b/>?</prompt>').advice

    assert advice
    assert set(made.store.keys()) == keys


def test_a_prompt_without_room_for_the_answer_is_refused(engine: Engine) -> None:
    """Prompt and compared places must fit into the model's positions."""
    engine.add_schema('<schema name="s"><module name="a">alpha</module></schema>')

    with pytest.raises(ContextLengthExceeded):
        engine.audit('<prompt schema="s"><a/>?</prompt>', max_new_tokens=engine.model.context_length)


PLANTED = {
    Cause.TOKENS: '<module name="one">{0}</module><module name="two" requires="one">{1}</module>',
    Cause.POSITIONS: '<module name="one" reserve="{2}">{0}</module><module name="two" requires="one">{1}</module>',
    Cause.CONTEXT: '<module name="one">{0}</module><module name="two" context="guaranteed">{1}</module>',
}


def planted(cause: Cause, seed: int) -> tuple[str, str]:
    """Return a schema with one fault, and a prompt."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("aeiourstlmnd", k=chance.randint(3, 7))) for _ in range(8)]
    first, second = f" {' '.join(words[:4])}", f" {' '.join(words[4:])}"
    if cause is Cause.TOKENS:
        first, second = f" {' '.join(words[:3])} ab", f"cd {' '.join(words[3:])}"
    return PLANTED[cause].format(first, second, len(first) + chance.randint(20, 60)), f"<one/><two/>{words[0]}?"


@pytest.mark.law
@pytest.mark.parametrize("cause", Cause)
def test_a_planted_cause_is_named_first(cause: Cause) -> None:
    """A cut inside a token, a gap, and missing context: in 50 schemas each audit names the one that was planted."""
    model = tiny_model()
    with torch.no_grad():
        model.hf.lm_head.weight.mul_(12)  # otherwise a gap changes less than what counts as equal
    engine = Engine(model, JoiningTokenizer())
    for seed in range(law_examples(0.17)):
        schema, prompt = planted(cause, seed)
        engine.add_schema(f'<schema name="s" whitespace="preserve" separator="" positions="fixed">{schema}</schema>')
        made = engine.audit(f'<prompt schema="s">{prompt}</prompt>', max_new_tokens=3)
        first, *others = made.causes

        assert (first.cause, first.share > 0) == (cause, True), (schema, made.rungs)
        assert all(abs(each.share) < NOISE for each in others), (schema, made.rungs)


@pytest.mark.parametrize(
    ("schema", "prompt", "is_cut"),
    [
        ("<system>a b</system><user>c d</user>", "e?", False),
        ('<system>a b<module name="m">c d</module></system>', "<m/>e?", True),
        ('<module name="m">a b<parameter name="p" length="4"/> d</module>', '<m p="c"/>e?', True),
        ('<module name="m">a <parameter name="p" length="1" default="b"/> d</module>', "<m/>c?", False),
        ('<module name="m">a <parameter name="p" length="1" default="b"/>c</module>', "<m/>c?", True),
        ('<module name="m" cache="false">a b</module><module name="n">c</module>', "<m/><n/>e?", True),
        ("<user>a b</user>", "c?", True),
    ],
)
def test_text_between_two_frames_is_tokenized_as_a_whole(schema: str, prompt: str, is_cut: bool) -> None:
    """ "bc" is one token for plain prefill wherever the schema cuts it, but not across the frames of turns."""
    engine = Engine(tiny_model(), JoiningTokenizer())
    engine.add_schema(f'<schema name="s" whitespace="preserve" separator="">{schema}</schema>')
    made = engine.audit(f'<prompt schema="s">{prompt}</prompt>', max_new_tokens=2)

    assert (made.rungs[0].share > 0) is is_cut
    assert is_cut == any(each.kind is AdviceKind.TEXT for each in made.advice) or made.rungs[0].share < LEAST_NATS


@pytest.mark.real
@pytest.mark.long
@pytest.mark.skipif(not FOLDER.is_dir(), reason="make real-model")
def test_a_real_model_names_the_planted_cause() -> None:
    """A word that is cut, a gap and missing context have most of the distance where each is planted alone."""
    engine = Engine.from_pretrained(str(FOLDER))
    texts = "France lies in Europe. Its capital is Paris, a large city.", " Its people like to cook and to eat well."
    for cause, schema in PLANTED.items():
        first, second = (texts[0] + texts[1][:8], texts[1][8:]) if cause is Cause.TOKENS else texts
        text = schema.format(first, second, 60)
        engine.add_schema(f'<schema name="s" whitespace="preserve" separator="" positions="fixed">{text}</schema>')
        made = engine.audit('<prompt schema="s"><one/><two/> The capital of France is</prompt>', max_new_tokens=4)
        others = [abs(each.share) for each in made.rungs if each.cause is not cause]

        assert made.causes[0].cause is cause
        assert max(others) < 1e-6
