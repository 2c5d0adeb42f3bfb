"""Log-probabilities of generated tokens, from the logits that the model returns, before any processor changes them.

Of each step only the chosen token and the most probable ones are kept, not the logits of the whole vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from promptcache.diagnostics import Short, whole

MAX_LOGPROBS = 20
"""Limit of the most probable tokens that an answer has for each of its tokens."""

LOGPROBS = whole(0, MAX_LOGPROBS) | None
"""The kind of the option `logprobs`."""


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


class LogprobRecorder:
    """Keeps log-probabilities of the only row of a generation, step by step."""

    def __init__(self, num_top: int) -> None:
        """Create a recorder for the `num_top` most probable tokens of each step."""
        self._num_top = num_top
        self._pending: torch.Tensor | None = None  # [1, V], of the step whose tokens are not chosen yet
        self._steps: list[tuple[torch.Tensor, ...]] = []  # of each step: [1], [1], [1, K], [1, K]

    def add(self, logits: torch.Tensor) -> None:
        """Add the logits `[1, V]` of a step."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        self._pending = torch.log_softmax(logits, dim=-1, dtype=dtype)

    def choose(self, token_ids: torch.Tensor) -> None:
        """Set the token `[1]` that was chosen in the step that was added last; does nothing before the first one."""
        if self._pending is None:
            return
        chosen = self._pending.gather(1, token_ids[:, None])[:, 0]
        top = self._pending.topk(min(self._num_top, self._pending.shape[1]))
        self._steps.append((token_ids, chosen, top.indices, top.values))
        self._pending = None

    def watched(self, hf: Any, cache: Any) -> Any:
        """Return a view of a transformers model that adds the logits of its forward passes over `cache`.

        The view shares weights and hooks with the model, which is not changed: other threads may use it.
        """
        forward = hf.forward

        @wraps(forward)
        def watched_forward(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if kwargs.get("past_key_values") is cache:  # guidance runs the model on another cache
                self.choose(kwargs["input_ids"][:, -1])
                self.add(output.logits[:, -1])
            return output

        view = copy.copy(hf)
        view.forward = watched_forward
        return view

    def tokens(self, new_ids: torch.Tensor) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of the generated tokens `[1, n]`."""
        if len(self._steps) < new_ids.shape[1]:
            self.choose(new_ids[:, len(self._steps)])  # the last token was not fed
        steps = (torch.cat(each).tolist() for each in zip(*self._steps, strict=True))
        return tuple(
            TokenLogprobs(token_id=token_id, logprob=logprob, top=tuple(zip(top_ids, top, strict=True)))
            for token_id, logprob, top_ids, top in zip(*steps, strict=True)
        )
