"""Penalties and biases in the form of OpenAI, and min-p, as transformers' processors compute them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor, LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from promptcache.decode.sampling import candidates
from promptcache.diagnostics import InvalidGeneration
from promptcache.options import Options
from tests.conftest import law_examples
from tests.engine.test_output import BYTES, PROMPT

NUM_TOKENS = BYTES.model.num_known_tokens
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8}


class Changes(LogitsProcessor):
    """OpenAI's formula, token by token."""

    def __init__(self, presence: float, frequency: float, bias: dict[int, float]) -> None:
        self._presence, self._frequency, self._bias = presence, frequency, bias
        self._num_before: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Change the scores of one row."""
        if self._num_before is None:
            self._num_before = input_ids.shape[1]
        answer = input_ids[0, self._num_before :].tolist()
        made = scores.clone()
        for token in range(scores.shape[1]):
            count = answer.count(token)
            made[0, token] += self._bias.get(token, 0.0) - count * self._frequency - (count > 0) * self._presence
        return made


_NUMBERS = st.sampled_from([0.0, 0.5, -0.5, 2.0])


@pytest.mark.law
@settings(max_examples=law_examples(0.5), deadline=None)
@given(
    presence=_NUMBERS,
    frequency=_NUMBERS,
    bias=st.dictionaries(st.integers(0, NUM_TOKENS - 1), st.sampled_from([-100.0, -1.0, 1.0, 3.0]), max_size=4),
)
def test_tokens_are_those_of_the_formula(presence: float, frequency: float, bias: dict[int, float]) -> None:
    """Rows with and without processors choose the tokens of the formula."""
    options: dict[str, Any] = {
        "presence_penalty": presence,
        "frequency_penalty": frequency,
        "logit_bias": bias,
        **GREEDY,
    }
    found = BYTES.generate(PROMPT, **options)
    formula = LogitsProcessorList([Changes(presence, frequency, bias)])
    assert found.token_ids == BYTES.generate(PROMPT, logits_processor=formula, **GREEDY).token_ids
    alone = BYTES.generate(PROMPT, logits_processor=LogitsProcessorList([Changes(0.0, 0.0, {})]), **options)
    assert found.token_ids == alone.token_ids


@pytest.mark.law
@settings(max_examples=law_examples(), deadline=None)
@given(
    seed=st.integers(0, 2**20),
    top_k=st.sampled_from((0, 1, 5)),
    top_p=st.sampled_from((1.0, 0.8)),
    min_p=st.sampled_from((0.0, 0.05, 0.5, 1.0)),
)
def test_min_p_keeps_the_tokens_of_transformers(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    """Top-k, top-p and min-p in this order, with the probabilities of the kept tokens."""
    scores = torch.randn((3, 50), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    warped = scores
    for warper in (
        *([TopKLogitsWarper(top_k)] if top_k else []),
        *([TopPLogitsWarper(top_p)] if top_p < 1 else []),
        MinPLogitsWarper(min_p),
    ):
        warped = warper(torch.zeros((3, 0), dtype=torch.long), warped)
    tokens, weights = candidates(scores, Options(do_sample=True, top_k=top_k, top_p=top_p, min_p=min_p))
    found = torch.zeros_like(scores).scatter_(-1, tokens, weights)
    torch.testing.assert_close(found / found.sum(-1, keepdim=True), warped.softmax(-1))


def test_a_bias_is_for_a_token_of_the_model() -> None:
    """Another token is refused by name, before anything is computed."""
    with pytest.raises(
        InvalidGeneration, match=f"logit_bias has token {NUM_TOKENS}, and the model has tokens 0 to {NUM_TOKENS - 1}"
    ):
        BYTES.generate(PROMPT, logit_bias={NUM_TOKENS: 2})
