"""Changes of logits that transformers' `generate` has no option for: penalties and biases in the form of OpenAI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from promptcache.diagnostics import InvalidGeneration, Kind, number, whole

PENALTY = number(-1e5, 1e5)
_TOKEN = whole(0, 2**63 - 1)
LOGIT_BIAS = Kind(
    "a mapping of token IDs to numbers from -1e5 to 1e5",
    lambda value: (
        isinstance(value, Mapping) and all(_TOKEN.takes(token) and PENALTY.takes(bias) for token, bias in value.items())
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitChanges:
    """What is subtracted from logits, or added to them, before all other processing.

    Attributes:
        presence_penalty: Subtracted from tokens that the answer has.
        frequency_penalty: Subtracted from a token as often as the answer has it.
        logit_bias: Pairs of a token and what is added to its logit.
    """

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __bool__(self) -> bool:
        return self != LogitChanges()

    @property
    def reads_answer(self) -> bool:
        """Whether the tokens of the answer matter."""
        return bool(self.presence_penalty or self.frequency_penalty)

    def check(self, num_tokens: int) -> None:
        """Refuse a bias for a token that the model does not have.

        Raises:
            InvalidGeneration: Names the token.
        """
        wrong = next((token for token, _ in self.logit_bias if token >= num_tokens), None)
        if wrong is not None:
            raise InvalidGeneration(f"logit_bias has token {wrong}, and the model has tokens 0 to {num_tokens - 1}")

    def apply_(self, scores: torch.Tensor, answer_ids: torch.Tensor) -> None:
        """Change the logits `[V]` of the next token in place.

        Args:
            answer_ids: The answer so far, `[n]`.
        """
        if self.reads_answer and answer_ids.numel():
            counts = torch.bincount(answer_ids)
            tokens = counts.nonzero()[:, 0]
            penalties = self.presence_penalty + self.frequency_penalty * counts[tokens]
            scores[tokens] -= penalties.to(scores.dtype)
        if self.logit_bias:
            tokens, biases = (torch.tensor(each, device=scores.device) for each in zip(*self.logit_bias, strict=True))
            scores[tokens] += biases.to(scores.dtype)
