"""Log-probabilities of generated tokens, from the logits that the model returns, before any processor changes them.

Of each step only the chosen token and the most probable ones are kept, not the logits of the whole vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from promptcache.diagnostics import Short


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TokenLogprobs(Short):
    """Log-probabilities at one generated token.

    Attributes:
        token_id: The generated token.
        logprob: Its log-probability, before temperature, penalties and other processors.
        top: The most probable tokens with theirs, the most probable first. The generated token need not be among them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Return the log-probabilities at one place, from the logits `[V]` that the model returned there."""
    logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    top = logprobs.topk(min(num_top, len(logprobs)))
    pairs = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return TokenLogprobs(token_id=token_id, logprob=float(logprobs[token_id]), top=pairs)
