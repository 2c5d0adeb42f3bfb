"""Logits of several prompts at once, and scores of texts that continue a prompt."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import ContextLengthExceeded, InvalidValue
from promptcache.engine import Engine
from promptcache.model import reference_logits
from promptcache.model.model import Model
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import CONTEXT_LENGTH, tiny_model
from tests.conftest import law_examples
from tests.families import random_model
from tests.planted.registry import module_of
from tests.rows.test_batch import PROMPTS, engine_of

CHOICES = [" yes", "no", "?", " It depends on what you mean by that.", "no"]
ENGINE = engine_of(tiny_model())
scores = module_of("promptcache.decode.score")


@cache
def engine_named(family: str) -> Engine:
    return ENGINE if family == "llama" else engine_of(Model(random_model(family, torch.float64)))


def expected_logprobs(engine: Engine, prompt: str, choice: str, repair: str | None = None) -> torch.Tensor:
    """Return the log-probabilities `[n, V]` at the places of a choice's tokens, from the reference."""
    tokens = engine.plan(prompt, repair=repair).tokens
    more = engine.tokenizer.tokenize(choice)
    stop = tokens.position_ids[-1] + 1
    whole = replace(
        tokens,
        token_ids=(*tokens.token_ids, *more),
        position_ids=(*tokens.position_ids, *range(stop, stop + len(more))),
    )
    return reference_logits(whole, engine.model).log_softmax(-1)[-len(more) - 1 : -1]


def assert_scored(engine: Engine, prompt: str, choices: list[str], tolerance: float, **options: Any) -> None:
    found = engine.score(prompt, choices, **options)
    assert [each.text for each in found] == choices
    for each in found:
        expected = expected_logprobs(engine, prompt, each.text, **options)
        chosen = expected.gather(1, torch.tensor(each.token_ids)[:, None])[:, 0]
        assert each.token_ids == engine.tokenizer.tokenize(each.text)
        assert torch.allclose(torch.tensor(each.logprobs, dtype=chosen.dtype), chosen, rtol=0, atol=tolerance)
        assert each.logprob == pytest.approx(float(chosen.sum()), abs=1e-4)
        assert each.mean_logprob == pytest.approx(float(chosen.mean()), abs=1e-4)
        assert each.is_greedy == (tuple(expected.argmax(-1).tolist()) == each.token_ids)


@pytest.mark.law
@given(
    family=st.sampled_from(["llama", "llama", "mistral", "gemma2", "gpt-oss"]),
    prompt=st.sampled_from(PROMPTS),
    choices=st.lists(st.sampled_from(CHOICES), min_size=1, max_size=4),
    repair=st.sampled_from(["slots", "all"]),
    limit=st.sampled_from([3, 16, 2048]),
)
@settings(max_examples=law_examples(0.5))
def test_scores_are_log_probabilities_of_the_reference(
    family: str, prompt: str, choices: list[str], repair: str, limit: int
) -> None:
    """Scores equal the log-softmax of plain logits over the same tokens, in forward passes of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "CHUNK_TOKENS", limit)
        assert_scored(engine_named(family), prompt, choices, 1e-9 if family == "llama" else 1e-4, repair=repair)


def test_the_greedy_answer_is_greedy() -> None:
    """A text is greedy if each of its tokens is: not with another one behind it, or before it."""

    def greedy(prompt: str) -> str:
        return ENGINE.generate(prompt, max_new_tokens=1, do_sample=False).text

    longer = {each: each.replace("</prompt>", "~</prompt>") for each in PROMPTS}
    prompt = next(each for each in PROMPTS if greedy(each).isascii() and greedy(longer[each]).isascii())
    answer, behind = greedy(prompt), greedy(longer[prompt])

    found = ENGINE.score(prompt, [answer, f"{answer}\x00", f"~{behind}"])

    assert [each.is_greedy for each in found] == [True, False, False]
    assert ENGINE.score(longer[prompt], [behind])[0].is_greedy
    assert found[0].logprob > found[1].logprob


@pytest.mark.parametrize("method", ["logits", "reference", "link", "generate"])
def test_a_prompt_that_is_too_long_is_refused(method: str) -> None:
    prompt = PROMPTS[0].replace("</prompt>", f"{'x' * CONTEXT_LENGTH}</prompt>")
    with pytest.raises(ContextLengthExceeded, match=str(CONTEXT_LENGTH)):
        getattr(ENGINE, method)(prompt)
    with pytest.raises(ContextLengthExceeded, match=f"{CONTEXT_LENGTH} new tokens"):
        ENGINE.score(PROMPTS[0], ["a", "x" * CONTEXT_LENGTH])


def test_choices_share_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = Model.forward
    monkeypatch.setattr(Model, "forward", lambda *args, **options: calls.append(1) or forward(*args, **options))
    ENGINE.warm()

    ENGINE.score(PROMPTS[0], CHOICES)
    assert len(calls) == 2
    ENGINE.score(PROMPTS[0], ["a", "b"])  # one token each: the prompt predicts them
    assert len(calls) == 3


@pytest.mark.parametrize("choices", [[], "yes", ["a", ""], ["a", 1], None, ["a", "\udc80"], {"a": 1}, ["a", "~"]])
def test_what_is_no_choice_is_refused(choices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices are texts that are not empty; one that the tokenizer drops is named."""
    original = ByteTokenizer.tokenize
    monkeypatch.setattr(ByteTokenizer, "tokenize", lambda self, text: () if text == "~" else original(self, text))
    with pytest.raises(InvalidValue, match=r"choices=.* a list of texts|'~' has no tokens"):
        ENGINE.score(PROMPTS[0], choices)
