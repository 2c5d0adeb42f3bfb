"""Logits under the token masks of output formats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from promptcache.answers.call_style import control_tokens
from promptcache.answers.token_grammars import Mask, TokenGrammars
from promptcache.attention import to_device
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
