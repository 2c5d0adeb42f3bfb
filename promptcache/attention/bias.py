"""A mask in the form of fused kernels: numbers that are added to the scores."""

from __future__ import annotations

from typing import NamedTuple

import torch

from promptcache.attention.backend import AttentionSpec
from promptcache.attention.transfer import to_device


class Bias(NamedTuple):
    """A mask as a bias.

    Attributes:
        added: Added to the scores, `[B, 1, T, S]`; B may be 1.
        blind: Bool, the queries that attend to no key, `[B, 1, T]` or `[T]`; None if there are none.
    """

    added: torch.Tensor
    blind: torch.Tensor | None

    @staticmethod
    def of(mask: torch.Tensor, spec: AttentionSpec, alignment: int = 1) -> Bias:
        """Return the bias of a mask, bool `[T, S]` or `[B, 1, T, S]` on the host.

        Args:
            alignment: Rows of the bias begin at multiples of this number of elements.
        """
        *outer, num_keys = mask.shape
        width = -(-num_keys // alignment) * alignment
        added = torch.zeros((*outer, width), dtype=spec.dtype, device=spec.device)[..., :num_keys]
        added.masked_fill_(~to_device(mask, spec.device), -torch.inf)
        blind = ~mask.any(-1)
        return Bias(
            added=added if added.ndim == 4 else added[None, None],
            blind=to_device(blind, spec.device) if blind.any() else None,
        )
