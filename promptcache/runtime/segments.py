"""Segments of stored KV, and which queries see which of their keys.

Comes in: stored runs with their positions, and the positions of a request's own tokens. Goes out: for one forward pass,
slices and masks. Everything here happens on the host, from positions alone; nothing reads a device. This file knows no
model.

Who sees whom is decided by position IDs: a query sees the keys at lower positions, and its own. Own tokens are kept in
position order and no own token lies inside a segment, so a segment is seen by a suffix of the queries and no mask is
needed, unless a sliding window ends inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from promptcache.kv.types import LayerViews, RunKV, Slab
from promptcache.layout.types import Encoding

Positions = npt.NDArray[np.int64]


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

    def position_array(self) -> Positions:
        """Return all positions, `[T]`."""
        stretches = (part.encoding.position_ids[part.start : part.stop] for part in self.parts)
        return np.concatenate([np.asarray(stretch, dtype=np.int64) for stretch in stretches])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sight:
    """What queries `[first_row:]` of one forward see of a segment: its keys `[start:stop)`, or a `mask [T', S']`.

    In a batch of requests only `rows` may see it (None: all), and of their queries not those `unseen [R, T']`; `mask`
    is then `[R, T', S']`.
    """

    first_row: int
    start: int
    stop: int
    mask: torch.Tensor | None
    rows: torch.Tensor | None = None
    unseen: torch.Tensor | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every query of every row sees every key from `start` to `stop`."""
        return self.first_row == 0 and self.mask is None and self.rows is None and self.unseen is None


class Look(NamedTuple):
    """Keys that one call of a kernel attends to, and who sees them: None if every query sees every key."""

    views: LayerViews
    sight: Sight | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Sights:
    """Everything that one forward of some own tokens sees.

    Attributes:
        segments: All of them.
        seen: What is seen of each; None: nothing.
        tail_mask: `[T, n]` of the own tokens, None where plain causality by index is meant.
    """

    segments: tuple[Segment, ...]
    seen: tuple[Sight | None, ...]
    tail_mask: torch.Tensor | None

    @cached_property
    def looks(self) -> tuple[Look, ...]:
        """What is seen, in as few pieces as possible.

        Stretches of one length at equal distances in one slab are one strided tensor, and one call of a kernel: always
        two of them, often all chunks of a document. What a forward pays for every call is paid once.
        """
        found: list[Look] = []
        alike: dict[tuple[Slab, int], list[int]] = {}
        for segment, sight in zip(self.segments, self.seen, strict=True):
            if sight is None:
                continue
            if sight.is_whole:
                alike.setdefault((segment.slab, sight.stop - sight.start), []).append(segment.start + sight.start)
            else:
                found.append(Look(segment.layers(sight.start, sight.stop), sight))
        for (slab, length), starts in alike.items():
            for first, count, step in _progressions(sorted(starts)):
                found.append(Look(slab.layers(first, first + length, count, step), None))
        return tuple(found)


def _progressions(starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut rising numbers into stretches with equal steps: the first, how many, and the step."""
    begin = 0
    while begin < len(starts):
        stop = min(begin + 2, len(starts))
        step = starts[stop - 1] - starts[begin]
        while stop < len(starts) and starts[stop] - starts[stop - 1] == step:
            stop += 1
        yield starts[begin], stop - begin, step
        begin = stop


class AnyTimeline(Protocol):
    """What attention asks: the segments of one request, or of a batch of them, and what a forward sees of them."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, in the order of the sights."""

    @property
    def num_cached(self) -> int:
        """Tokens that the cache holds beside the own ones."""

    def sights(self, num_own: int, num_queries: int, window: int | None) -> Sights:
        """Return what the last `num_queries` of `num_own` own tokens see."""


class Timeline:
    """The positions of a request's own tokens, and what each forward over them sees of the segments.

    Own tokens have the planned positions first; every later token follows the one before it.
    """

    def __init__(self, segments: Sequence[Segment], planned: Sequence[int], device: torch.device) -> None:
        assert all(low < high for low, high in pairwise(planned)), "own tokens are in position order"
        self.segments: tuple[Segment, ...] = tuple(segments)
        self.num_cached = sum(segment.num_tokens for segment in segments)
        self._device = device
        self._planned = np.asarray(planned, dtype=np.int64)
        self._arrays: dict[int, Positions] = {}
        self._latest: dict[int | None, tuple[tuple[int, int], Sights]] = {}

    def positions(self, start: int, stop: int) -> Positions:
        """Return the positions of own tokens `[start, stop)`."""
        planned = self._planned
        beyond = np.arange(max(start, len(planned)), max(stop, len(planned)), dtype=np.int64) - len(planned)
        following = (planned[-1] + 1 if len(planned) else 0) + beyond
        return np.concatenate([planned[start:stop], following])

    def sights(self, num_own: int, num_queries: int, window: int | None) -> Sights:
        """Return what the last `num_queries` of `num_own` own tokens see; computed once per forward and window."""
        known = self._latest.get(window)
        if known is None or known[0] != (num_own, num_queries):
            known = ((num_own, num_queries), self._look(num_own, num_queries, window))
            self._latest[window] = known
        return known[1]

    def _look(self, num_own: int, num_queries: int, window: int | None) -> Sights:
        own = self.positions(0, num_own)
        queries = own[num_own - num_queries :]
        sights = tuple(self._look_at(index, queries, window) for index in range(len(self.segments)))
        if window is None or queries[-1] - own[0] < window:
            return Sights(segments=self.segments, seen=sights, tail_mask=None)
        order = np.arange(num_own)
        mask = (order <= order[num_own - num_queries :, None]) & (queries[:, None] - own < window)
        return Sights(segments=self.segments, seen=sights, tail_mask=self._tensor(mask))

    def _look_at(self, index: int, queries: Positions, window: int | None) -> Sight | None:
        segment = self.segments[index]
        first_row = int(np.searchsorted(queries, segment.last))
        if first_row == len(queries):
            return None
        if window is None or queries[-1] - segment.first < window:
            return Sight(first_row=first_row, start=0, stop=segment.num_tokens, mask=None)
        keys = self._arrays.setdefault(index, segment.position_array())
        queries = queries[first_row:]
        start = int(np.searchsorted(keys, queries[0] - window, side="right"))
        if start == len(keys):
            return None
        mask = queries[:, None] - keys[start:] < window
        return Sight(first_row=first_row, start=start, stop=len(keys), mask=None if mask.all() else self._tensor(mask))

    def _tensor(self, mask: npt.NDArray[np.bool_]) -> torch.Tensor:
        return torch.from_numpy(mask).to(self._device)
