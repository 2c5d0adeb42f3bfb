"""Segments: views of stored KV, with what they are parts of.

A segment is what `runtime/attention` attends to (its `KVView`); the parts say which encodings its tokens belong to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from promptcache.kv.types import LayerViews, RunKV, Slab
from promptcache.layout.types import Encoding
from promptcache.runtime.attention import PositionArray


class Part(NamedTuple):
    """Tokens `[start, stop)` of an encoding, not copied."""

    encoding: Encoding
    start: int
    stop: int

    @property
    def first(self) -> int:
        """The lowest position."""
        return self.encoding.position_ids[self.start]

    @property
    def last(self) -> int:
        """The highest position."""
        return self.encoding.position_ids[self.stop - 1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A view of stored KV: tokens `[start, stop)` of the slab that `runs` rest in.

    `parts` say what they are, in the order of their positions; `runs` are held so that their memory stays while the
    segment is used.
    """

    runs: tuple[RunKV, ...]
    start: int
    stop: int
    parts: tuple[Part, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens in view."""
        return self.stop - self.start

    @property
    def first(self) -> int:
        """The lowest position."""
        return self.parts[0].first

    @property
    def last(self) -> int:
        """The highest position."""
        return self.parts[-1].last

    @property
    def slab(self) -> Slab:
        """The memory it is a view of."""
        return self.runs[0].slab

    def layers(self, start: int = 0, stop: int | None = None) -> LayerViews:
        """Return keys and values `[1, Hkv, T, D]` of every layer, as views; of tokens `[start, stop)` if given."""
        return self.slab.layers(self.start + start, self.stop if stop is None else self.start + stop)

    def position_array(self) -> PositionArray:
        """Return all positions, `[T]`."""
        stretches = (part.encoding.position_ids[part.start : part.stop] for part in self.parts)
        return np.concatenate([np.asarray(stretch, dtype=np.int64) for stretch in stretches])
