"""Masks for models outside the attention interface, whose KV is concatenated into plain caches.

Comes in: the positions of a request. Goes out: the custom mask under which new tokens see what stands at lower
positions, and nothing else. Stock masks go by the order of the cache, which is not the order of positions when an
argument stands between modules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from promptcache.runtime.attention import RequestPositions
from promptcache.runtime.hf.model import Model


def position_mask(model: Model, positions: RequestPositions, num_new: int) -> Any:
    """Return the mask for the first `num_new` own tokens over everything cached and over themselves, by position ID."""
    own = positions.of_own_tokens(0, num_new)
    keys = np.concatenate([*(segment.position_array() for segment in positions.segments), own])
    distance = torch.from_numpy(own[:, None] - keys[None, :])  # [T, P + T]
    return model.attention_masks(distance >= 0, distance)
