"""Hand-made views of stored KV, without a model, an encoding or a schema."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from promptcache.attention import PositionArray
from promptcache.kv import KV, KVShape, LayerViews


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Tokens `[start, stop)` of KV, at the positions `placed`."""

    kv: KV
    start: int
    placed: tuple[int, ...]

    @property
    def stop(self) -> int:
        """The end of the view."""
        return self.start + len(self.placed)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in view."""
        return len(self.placed)

    @property
    def first(self) -> int:
        """The lowest position."""
        return self.placed[0]

    @property
    def last(self) -> int:
        """The highest position."""
        return self.placed[-1]

    def position_array(self) -> PositionArray:
        """All positions."""
        return np.asarray(self.placed, dtype=np.int64)

    def layers(self, start: int = 0, stop: int | None = None) -> LayerViews:
        """Keys and values of every layer."""
        return self.kv.layers(self.start + start, self.stop if stop is None else self.start + stop)


def random_kv(shape: KVShape, num_tokens: int, generator: torch.Generator) -> KV:
    """Random KV, drawn in float64 so that every dtype gets the same."""
    made = KV.empty(shape, num_tokens)
    for states in (made.keys, made.values):
        states.copy_(torch.randn(states.shape, generator=generator, dtype=torch.float64))
    return made
