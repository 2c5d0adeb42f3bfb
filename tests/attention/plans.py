"""Random forward passes, and dense attention by position: the oracle of all backends."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from promptcache.attention import (
    AttentionCall,
    AttentionSpec,
    PassTokens,
    PlacedView,
    RowChunk,
    TailGroup,
    padded_positions,
)
from promptcache.attention.backend import AttentionBackend
from promptcache.kv import KV, KVShape
from promptcache.rows.tails import Tails

HEAD_DIM, SCALE, NUM_LAYERS = 16, 0.3, 2

Write = Callable[[KVShape, Sequence[tuple[KV, int]], int, torch.Tensor, torch.Tensor], None]
"""Writes keys and values `[T, Hkv, D]` of a layer to the places of the tokens."""


def write_one_by_one(
    _shape: KVShape, places: Sequence[tuple[KV, int]], layer: int, keys: torch.Tensor, values: torch.Tensor
) -> None:
    for token, (memory, index) in enumerate(places):
        memory.keys[layer, :, index], memory.values[layer, :, index] = keys[token], values[token]


def view_of(kv: KV, start: int, placed: Sequence[int]) -> PlacedView:
    """Return a view of KV from `start` on, at hand-made positions."""
    return PlacedView(kv=kv, start=start, stop=start + len(placed), positions=np.array(placed, dtype=np.int64))


def random_kv(shape: KVShape, num_tokens: int, generator: torch.Generator) -> KV:
    """Random KV, drawn in float64 so that every dtype gets the same."""
    made = KV.empty(shape, num_tokens)
    for states in (made.keys, made.values):
        states.copy_(torch.randn(states.shape, generator=generator, dtype=torch.float64))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """One row: positions of its segments and of its own tokens, of which the last `new` are computed."""

    segments: tuple[PlacedView, ...]
    own: tuple[int, ...]
    new: int


class PassPlan:
    """A random forward pass: rows that share segments, with arguments in the middle, gaps, windows, caps and sinks."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self._chance = chance = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.heads, self.groups = chance.choice([1, 2, 3]), chance.choice([1, 2, 3, 7])
        self.shape = KVShape(
            num_layers=NUM_LAYERS, num_kv_heads=self.heads, head_dim=HEAD_DIM, dtype=dtype, device=torch.device(device)
        )
        self.window = chance.choice([None, 3, 25, 160])
        self.sinks = self.states(self.heads * self.groups) if chance.random() < 0.3 else None
        self.softcap: float | None = None
        places = self._places()
        shared = [self._view(tuple(each)) for each in places[::2]]
        gaps = [each for each in places[1::2] if each]
        last = max(max(each) for each in places if each)
        self.rows = [self._row(shared, gaps, last) for _ in range(chance.choice([1, 1, 2, 4]))]

    def states(self, *shape: int) -> torch.Tensor:
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(self.shape.device, self.shape.dtype)

    def _places(self) -> list[list[int]]:
        """Positions of segments, each followed by positions that own tokens may have."""
        place, found = self._chance.randrange(5), []
        for _ in range(self._chance.randint(1, 5)):
            for length in (self._chance.choice([1, 2, 5, 30, 140]), self._chance.choice([0, 0, 2])):
                found.append([*range(place, place + length)])
                place += length + self._chance.choice([0, 0, 4])
        return found

    def _view(self, placed: tuple[int, ...]) -> PlacedView:
        before = self._chance.choice([0, 3])
        return view_of(random_kv(self.shape, before + len(placed) + 2, self.generator), before, placed)

    def _row(self, shared: list[PlacedView], gaps: list[list[int]], last: int) -> PlannedRow:
        chance = self._chance
        segments = tuple(each for each in shared if chance.random() < 0.7)
        inside = [place for gap in gaps if chance.random() < 0.5 for place in gap]
        number = chance.choice([1, 2, 9, 40])
        own = (*inside, *range(last + chance.randint(1, 4), last + 4 + number))
        return PlannedRow(segments=segments, own=own, new=chance.choice([1, 1, min(3, len(own)), len(own)]))

    def expected(self, row: PlannedRow, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Dense attention of a row by position, `[1, Hq, T, D]`, in float64."""
        own = torch.tensor(row.own)
        places = torch.tensor([place for view in row.segments for place in view.positions] + list(row.own))
        distance = own[-row.new :, None] - places
        mask = ((distance >= 0) & (distance < (self.window or 1 << 30))).to(self.shape.device)
        stored = [view.layers()[1] for view in row.segments]
        all_keys, all_values = (
            torch.cat([*(each[kind] for each in stored), tail], dim=2) for kind, tail in enumerate((keys, values))
        )
        return dense_attention(
            query, all_keys, all_values, scale=SCALE, mask=mask, softcap=self.softcap, sinks=self.sinks
        )[0]

    def distance(self, backend: AttentionBackend, write: Write = write_one_by_one) -> float | None:
        """Return the largest distance of a row from dense attention; None if the backend does not support the pass."""
        rows = sorted(self.rows, key=lambda row: row.new > 1)
        own = [tuple(self.states(1, self.heads, len(row.own), HEAD_DIM) for _ in range(2)) for row in rows]
        starts = [sum(row.new for row in rows[:index]) for index in range(len(rows) + 1)]
        query = self.states(1, starts[-1], self.heads * self.groups, HEAD_DIM).transpose(1, 2)
        keys, values = (
            torch.cat([kv[kind][:, :, -row.new :] for row, kv in zip(rows, own, strict=True)], dim=2)
            for kind in range(2)
        )
        call = AttentionCall(query, keys, values, SCALE, self.window, self.softcap, self.sinks)
        spec = AttentionSpec.of(call)
        if not backend.supports(spec):
            return None
        tokens, places = self._tokens(rows, own, starts)
        for layer in range(NUM_LAYERS):
            write(self.shape, places, layer, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        found = backend.prepare(tokens, self.window, spec).run(1, call).transpose(1, 2)
        return max(
            far(found[:, :, start : start + row.new], self.expected(row, query[:, :, start : start + row.new], *kv))
            for row, kv, start in zip(rows, own, starts, strict=False)
        )

    def _tokens(
        self, rows: Sequence[PlannedRow], own: Sequence[tuple[torch.Tensor, ...]], starts: Sequence[int]
    ) -> tuple[PassTokens, list[tuple[KV, int]]]:
        """Return the tokens with their older own KV in tails, and the places of the new ones."""
        tails = Tails(self.shape)
        taken = [tails.take(len(row.own)) for row in rows]  # memory may grow, so memory is read afterwards
        groups, chunks, places = list[TailGroup](), list[RowChunk](), list[tuple[KV, int]]()
        for index, (row, kv, tail) in enumerate(zip(rows, own, taken, strict=True)):
            memory, old = tails.memory(tail), len(row.own) - row.new
            for states, mine in zip((memory.keys, memory.values), kv, strict=True):
                states[:, :, :old] = mine[0, :, :old]
            places += [(memory, place) for place in range(old, len(row.own))]
            if row.new == 1:
                groups.append(
                    TailGroup(
                        start=starts[index],
                        stop=starts[index + 1],
                        views=tails.views(tail.size, tail.slot, tail.slot, len(row.own)),
                        indices=(0,),
                        positions=padded_positions([np.array(row.own)]),
                    )
                )
            else:
                older = view_of(memory, 0, row.own[:old]) if old else None
                chunks.append(RowChunk(start=starts[index], stop=starts[index + 1], older=older))
        segments = tuple({each: None for row in rows for each in row.segments})
        users = np.array([[each in row.segments for row in rows] for each in segments], dtype=np.bool_)
        tokens = PassTokens(
            segments=segments,
            users=np.repeat(users.reshape(len(segments), len(rows)), [row.new for row in rows], axis=1),
            positions=np.concatenate([np.array(row.own[-row.new :]) for row in rows]),
            groups=tuple(groups),
            chunks=tuple(chunks),
            device=self.shape.device,
        )
        return tokens, places


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, against the size of values, which is about 1."""
    return float((found.double() - expected).abs().max() / max(1.0, float(expected.abs().max())))


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention `[B, Hq, T, D]` and log-sum-exp `[B, Hq, T]` in float64; the log-sum-exp is without sinks."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (states.double().repeat_interleave(groups, 1) for states in (key, value))
    scores = query.double() @ keys.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is None:
        weights = scores.softmax(-1).nan_to_num()
    else:
        extra = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
    return weights @ values, scores.logsumexp(-1)
