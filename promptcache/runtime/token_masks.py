"""Logits under the token masks of output formats: for rows of a shared forward pass, and for transformers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from promptcache.runtime.attention import to_device
from promptcache.runtime.call_style import control_tokens
from promptcache.runtime.token_grammars import Mask, TokenGrammars, TokenMatcher
from promptcache.tokenizer import Tokenizer


def token_grammars(tokenizer: Tokenizer, num_tokens: int) -> TokenGrammars:
    """Return the grammars over the tokens of a model.

    Args:
        num_tokens: Number of tokens of the model. It may be larger than that of the tokenizer.
    """

    tokens = [
        b"" if token_id in tokenizer.control_ids else tokenizer.token_bytes(token_id) for token_id in range(num_tokens)
    ]
    controls = control_tokens(tokenizer, *(tokenizer.reasoning_tags or ()), tokenizer.answer_start)
    return TokenGrammars(tokens, tokenizer.tokenize, controls)


def masked(logits: torch.Tensor, masks: Sequence[Mask | None]) -> torch.Tensor:
    """Return logits `[R, V]` that are minus infinity for tokens which the mask of their row does not allow.

    Args:
        logits: `[R, V]`. Not changed.
        masks: That of each row; None for a row that may have all tokens.
    """
    if all(each is None for each in masks):
        return logits
    forbidden = np.zeros(logits.shape, np.bool_)
    for row, mask in zip(forbidden, masks, strict=True):
        if mask is not None:  # a model may have more outputs than tokens, or fewer
            row[len(mask) :] = True
            np.logical_not(mask[: len(row)], out=row[: len(mask)])
    return logits.masked_fill(to_device(torch.from_numpy(forbidden), logits.device), -torch.inf)


class MaskProcessor:
    """A logits processor that applies the token masks of one format to each row, a beam or a sequence."""

    def __init__(self, start: TokenMatcher, num_given: int) -> None:
        """Create a processor.

        Args:
            start: The matcher at the start of an answer.
            num_given: Number of prompt tokens in front of each answer.
        """
        self._num_given = num_given
        self._known: dict[tuple[int, ...], TokenMatcher] = {(): start}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mask scores `[B, V]` behind tokens `[B, T]`. A row that the format refuses is a beam without a score."""
        answers = [tuple(each) for each in input_ids[:, self._num_given :].tolist()]
        matchers = [self._matcher(each) for each in answers]
        self._known = {answer: each for answer, each in zip(answers, matchers, strict=True) if each is not None}
        return masked(scores, [None if each is None else each.mask() for each in matchers])

    def _matcher(self, answer: tuple[int, ...]) -> TokenMatcher | None:
        """Return the matcher behind an answer; None if it does not have the format, or has ended."""
        if answer in self._known:
            return self._known[answer]
        before = self._known.get(answer[:-1])
        if before is None or before.is_end(answer[-1]):
            return None
        matcher = before.copy()
        return matcher if matcher.add(answer[-1]) else None
