"""Audits: the distance is that of the reference from the model's own forward pass, and both answers are greedy."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from promptcache import Engine
from promptcache.diagnostics import ContextLengthExceeded, InvalidValue
from promptcache.encode import Audit
from promptcache.encode.distance import whole_token_ids
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Level, piece_texts
from promptcache.model import Model, reference_logits, used_tokens
from promptcache.planning import serve_schema
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import HubTokenizer
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
    return Engine(Model(model.hf), ByteTokenizer(), repair="slots")


def audit(engine: Engine, schema: str, prompt: str) -> Audit:
    engine.add_schema(f'<schema name="s">{schema}</schema>')
    return engine.audit(f'<prompt schema="s">{prompt}</prompt>', max_new_tokens=PLACES)


MODULES = '<module name="a">alpha</module><module name="b">beta</module>'


@pytest.mark.parametrize(
    ("schema", "prompt", "level"),
    [
        *((APART, f"<a/><b/>{text}", Level.MODULAR) for text in ("?", "Well, which of the two?", "Tell me more")),
        ('Root.<module name="a">alpha</module>', "<a/>Well?", Level.EXACT),
        (MODULES, "<a/><b/>Well?", Level.EXACT),
        (f'{MODULES}<scaffold modules="a b"/>', "<a/><b/>", Level.EXACT),
        (MODULES.replace('"b"', '"b" cache="false"'), "<a/><b/>Well?", Level.EXACT),
    ],
)
def test_the_distance_is_that_of_the_reference_from_the_models_own_forward(
    engine: Engine, schema: str, prompt: str, level: Level
) -> None:
    """Without our caches: the answers by one forward pass for each token, and the KL divergence over their places."""
    found = audit(engine, schema, prompt)
    plan = engine.plan(f'<prompt schema="s">{prompt}</prompt>')
    token_ids = [token.token_id for token in used_tokens(plan.tokens)]
    answer: list[int] = []
    while len(answer) < PLACES and not {*answer} & {*engine.end_ids}:
        with torch.no_grad():
            logits = engine.model.hf(torch.tensor([[*token_ids, *answer]])).logits[0]
        answer.append(int(logits[-1].argmax()))
    plain = logits[-len(answer) :].log_softmax(-1)
    cached = reference_logits(plan.continued(answer[:-1]).tokens, engine.model)[-len(answer) :].log_softmax(-1)
    divergence = (plain.exp() * (plain - cached)).sum(-1).mean()
    same = (plain.argmax(-1) == cached.argmax(-1)).tolist()

    assert found.level is level
    assert found.divergence == pytest.approx(float(divergence), abs=NOISE)
    assert (found.divergence > 1e-4) is (level is Level.MODULAR)
    assert (found.num_places, found.agreement) == (len(answer), sum(same) / len(same))
    assert (found.same_first_token, found.same_answer) == (same[0], all(same))
    assert (found.plain_answer, found.answer == found.plain_answer) == (engine.tokenizer.decode(answer), all(same))
    own = engine.generate(f'<prompt schema="s">{prompt}</prompt>', do_sample=False, max_new_tokens=PLACES)
    assert found.answer == own.text


BYTES, LLAMA_LIKE = JoiningTokenizer(), HubTokenizer.from_parts(llama_like(), {})


@pytest.mark.parametrize(
    ("tokenizer", "schema", "prompt", "is_cut"),
    [
        (BYTES, "<system>a b</system><user>c d</user>", "e?", False),
        (BYTES, '<system>a b<module name="m">c d</module></system>', "<m/>e?", True),
        (BYTES, '<module name="m">a b<parameter name="p" length="4"/> d</module>', '<m p="c"/>e?', True),
        (BYTES, '<module name="m">a <parameter name="p" length="1" default="b"/> d</module>', "<m/>c?", False),
        (BYTES, '<module name="m">a <parameter name="p" length="1" default="b"/>c</module>', "<m/>c?", True),
        (BYTES, '<module name="m" cache="false">a b</module><module name="n">c</module>', "<m/><n/>e?", True),
        (BYTES, "<user>a b</user>", "c?", True),
        (LLAMA_LIKE, '<module name="a"> a a</module>', "<a/>a a", None),  # a space before a text is there once
        (LLAMA_LIKE, '<system>a <module name="a">a a</module></system>', "<a/><user>a a</user>", None),
    ],
)
def test_text_between_control_tokens_is_tokenized_as_a_whole(
    tokenizer: Any, schema: str, prompt: str, is_cut: bool | None
) -> None:
    """ "bc" is one token for ordinary prefill wherever the schema cuts it, but not across the control tokens of turns."""
    checked = check_schema(parse_schema(f'<schema name="s" whitespace="preserve" separator="">{schema}</schema>'))
    selection = resolve_prompt(parse_prompt(f'<prompt schema="s">{prompt}</prompt>'), checked)
    plan = serve_schema(checked, tokenizer, 1_000).plan(selection)
    whole = whole_token_ids(plan, tokenizer)

    assert tokenizer.detokenize(whole) == "".join(piece_texts(plan, tokenizer))
    assert is_cut is None or (whole != plan.tokens.used_ids) is is_cut


def test_an_audit_keeps_the_kv_of_its_request_only(engine: Engine) -> None:
    """The store has the KV of the schema, and the engine has no history of the audit."""
    prompt = '<prompt schema="own"><a/><b/>?</prompt>'
    engine.add_schema(f'<schema name="own">{APART.replace("alpha", "only here")}</schema>')
    engine.warm("own")
    keys = set(engine.store.keys())
    engine.audit(prompt)

    assert set(engine.store.keys()) == keys
    assert engine.generate(prompt, max_new_tokens=1).usage.num_history_tokens == 0


def test_wrong_limits_are_refused(engine: Engine) -> None:
    """Prompt and compared places must fit into the model's positions, and there is at least one place."""
    engine.add_schema(f'<schema name="s">{APART}</schema>')

    with pytest.raises(ContextLengthExceeded):
        engine.audit('<prompt schema="s"><a/>?</prompt>', max_new_tokens=engine.model.context_length)
    with pytest.raises(InvalidValue, match="max_new_tokens"):
        engine.audit('<prompt schema="s"><a/>?</prompt>', max_new_tokens=0)
