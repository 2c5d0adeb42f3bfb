"""Keys and values that are not finite, as after an overflow in float16.

Such KV must not be kept: attention multiplies values that a query does not attend to by zero, and 0 x NaN is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch


def are_finite(states: Iterable[torch.Tensor]) -> bool:
    """Whether all numbers of all tensors are finite."""
    bounds = [bound for each in states if each.numel() for bound in torch.aminmax(each)]
    return not bounds or bool(torch.stack(bounds).isfinite().all())


def has_finite_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return whether each row of logits `[R, V]` is free of NaN and infinity; minus infinity is allowed."""
    return logits.amax(-1) < math.inf  # the largest of numbers with NaN is NaN


def num_finite(kv: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """Return the number of tokens before the first one whose keys or values are not finite.

    Args:
        kv: Keys and values `[Hkv, n, D]`, by layer.
    """
    num_tokens = kv[0][0].shape[1]
    if are_finite(states for layer in kv for states in layer):
        return num_tokens
    is_finite = torch.stack([states.isfinite().all(-1).all(0) for layer in kv for states in layer]).all(0)  # [n]
    return int(is_finite.int().argmin())
