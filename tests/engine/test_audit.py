"""Audits: the distance is that of the reference from the model's own forward pass, and both answers are greedy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from promptcache import Engine
from promptcache.diagnostics import ContextLengthExceeded, InvalidValue
from promptcache.encode import Audit, compare_predictions
from promptcache.encode.distance import whole_token_ids
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Level, render
from promptcache.model import Model, reference_logits, used_tokens
from promptcache.planning import serve_schema
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import HubTokenizer
from tests.engine.asking import engine_of
from tests.tokenizer.small_tokenizers import llama_like

NOISE = 1e-9  # the tiny model computes in float64
PLACES = 6
APART = '<module name="a">alpha</module><module name="b" context="guaranteed">beta</module>'


class JoiningTokenizer(ByteTokenizer):
    """Bytes, except that "bc" is one token, the byte 1: a text that is cut between the two letters has other tokens."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        return super().tokenize(text.replace("bc", "\x01"))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return super().detokenize(token_ids).replace("\x01", "bc")


@pytest.fixture(scope="module")
def engine() -> Engine:
    """A tiny model over bytes that is sure of its answers, so that missing context changes them."""
    model = tiny_model()
    with torch.no_grad():
        model.hf.lm_head.weight.mul_(12)
    return Engine(Model(model.hf), ByteTokenizer())


def audit(engine: Engine, schema: str, prompt: str) -> Audit:
    engine.add_schema(f'<schema name="s">{schema}</schema>')
    return engine.audit(f'<prompt schema="s">{prompt}</prompt>', max_new_tokens=PLACES)


TEXTS = ("?", "Well, which of the two?", "Tell me more")


def test_the_distance_is_that_of_the_reference_from_the_models_own_forward(engine: Engine) -> None:
    """Without our caches: the answers by one forward pass for each token, and the KL divergence over their places."""
    assert sum(is_right(engine, text) for text in TEXTS) < len(TEXTS)  # so that both ways to get an answer are compared


def is_right(engine: Engine, text: str) -> bool:
    """Check an audit, and return whether the two answers are the same."""
    found = audit(engine, APART, f"<a/><b/>{text}")
    plan = engine.plan(f'<prompt schema="s"><a/><b/>{text}</prompt>')
    token_ids = [token.token_id for token in used_tokens(plan.tokens)]

    def greedy(given: list[int], num_new: int) -> tuple[list[int], torch.Tensor]:
        answer: list[int] = []
        while len(answer) < num_new and not {*answer} & {*engine.end_ids}:
            with torch.no_grad():
                logits = engine.model.hf(torch.tensor([[*given, *answer]])).logits[0]
            answer.append(int(logits[-1].argmax()))
        return answer, logits[-len(answer) :].log_softmax(-1)

    answer, plain = greedy(token_ids, PLACES)
    cached = reference_logits(plan.continued(answer[:-1]).tokens, engine.model)[-len(answer) :].log_softmax(-1)
    divergence = (plain.exp() * (plain - cached)).sum(-1).mean()
    same = (plain.argmax(-1) == cached.argmax(-1)).tolist()

    assert found.level is Level.MODULAR
    assert found.divergence == pytest.approx(float(divergence), abs=NOISE)
    assert found.divergence > 1e-4
    assert (found.num_places, found.agreement) == (len(answer), sum(same) / len(same))
    assert (found.same_first_token, found.same_answer) == (same[0], all(same))
    assert found.plain_answer == engine.tokenizer.decode(answer)
    own = engine.generate(f'<prompt schema="s"><a/><b/>{text}</prompt>', do_sample=False, max_new_tokens=PLACES)
    assert found.answer == own.text
    assert (found.answer == found.plain_answer) is found.same_answer
    return found.same_answer


@pytest.mark.parametrize(
    ("schema", "prompt"),
    [
        ('Root.<module name="a">alpha</module>', "<a/>Well?"),
        ('<module name="a">alpha</module><module name="b">beta</module>', "<a/><b/>Well?"),
        ('<module name="a">alpha</module><module name="b">beta</module><scaffold modules="a b"/>', "<a/><b/>"),
        ('<module name="a">alpha</module><module name="b" cache="false">beta</module>', "<a/><b/>Well?"),
    ],
)
def test_an_exact_request_is_plain_prefill(engine: Engine, schema: str, prompt: str) -> None:
    """It has no distance, and the same answer."""
    found = audit(engine, schema, prompt)

    assert (found.level, found.same_answer, found.same_first_token) == (Level.EXACT, True, True)
    assert found.answer == found.plain_answer
    assert found.divergence < NOISE


def test_repair_brings_a_request_nearer(engine: Engine) -> None:
    """An audit takes the setting of the request; computed again, a prompt has no distance."""
    engine.add_schema(f'<schema name="s">{APART}</schema>')
    prompt = '<prompt schema="s"><a/><b/>?</prompt>'
    apart, again = engine.audit(prompt), engine.audit(prompt, repair="all")

    assert (apart.level, again.level) == (Level.MODULAR, Level.EXACT)
    assert again.divergence < NOISE < apart.divergence


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
def test_text_between_control_tokens_is_tokenized_as_a_whole(schema: str, prompt: str, is_cut: bool) -> None:
    """ "bc" is one token for plain prefill wherever the schema cuts it, but not across the control tokens of turns."""
    schema = f'<schema name="s" whitespace="preserve" separator="">{schema}</schema>'
    engine = engine_of(tokenizer=JoiningTokenizer(), schema=schema)
    found = engine.audit(f'<prompt schema="s">{prompt}</prompt>', max_new_tokens=2, repair="all")

    assert found.level is Level.EXACT
    assert (found.divergence > NOISE) is is_cut


def test_distances_count_places() -> None:
    """Agreement is the share of places whose likeliest token is the same, divergence the mean over all of them."""
    there = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]).log()
    here = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]).log()

    found = compare_predictions(here, there)

    assert (found.agrees, found.agreement, found.same_answer) == ((True, False), 0.5, False)
    assert found.divergence == pytest.approx((0.5 - 0.25) * math.log(2) / 2)


def test_an_audit_keeps_the_kv_of_its_request_only() -> None:
    """The store has the KV of the schema, and the engine has no history of the audit."""
    engine = engine_of(schema=f'<schema name="s">{APART}</schema>')
    engine.warm()
    keys = set(engine.store.keys())
    engine.audit('<prompt schema="s"><a/><b/>?</prompt>')

    assert set(engine.store.keys()) == keys
    usage = engine.generate('<prompt schema="s"><a/><b/>?</prompt>', max_new_tokens=1).usage
    assert usage.num_history_tokens == 0


def test_wrong_limits_are_refused(engine: Engine) -> None:
    """Prompt and compared places must fit into the model's positions, and there is at least one place."""
    engine.add_schema(f'<schema name="s">{APART}</schema>')

    with pytest.raises(ContextLengthExceeded):
        engine.audit('<prompt schema="s"><a/>?</prompt>', max_new_tokens=engine.model.context_length)
    with pytest.raises(InvalidValue, match="max_new_tokens"):
        engine.audit('<prompt schema="s"><a/>?</prompt>', max_new_tokens=0)


LLAMA_LIKE = HubTokenizer.from_parts(llama_like(), {})
TURNS = '<system>a <module name="a">a a</module></system>'


@pytest.mark.parametrize(
    ("schema", "prompt"), [('<module name="a"> a a</module>', "<a/>a a"), (TURNS, "<a/><user>a a</user>")]
)
def test_text_of_sentencepiece_has_no_further_spaces(schema: str, prompt: str) -> None:
    """The space that a tokenizer puts before a text is there once."""
    checked = check_schema(parse_schema(f'<schema name="s">{schema}</schema>'))
    selection = resolve_prompt(parse_prompt(f'<prompt schema="s">{prompt}</prompt>'), checked)
    plan = serve_schema(checked, LLAMA_LIKE, 1_000).plan(selection)
    whole = whole_token_ids(plan, LLAMA_LIKE)

    assert LLAMA_LIKE.detokenize(whole) == render(plan, LLAMA_LIKE).text
