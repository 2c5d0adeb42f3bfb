"""A batch of rows that join, compute tokens together, and leave, in any order.

Each computation is one `Pass` over any rows: parts of prompts and single decoded tokens. Encoding computes rows whose
own KV is stored afterwards, without logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import TypeAlias, TypeVar

import numpy as np
import torch

from promptcache.attention import to_device
from promptcache.kv import KV
from promptcache.layout import Encoding, RequestTokens
from promptcache.model import Model, step_cache
from promptcache.rows.coalesce import Copies, without_cache
from promptcache.rows.forward_pass import Pass, Row, SharedKV, StopCheck
from promptcache.rows.history import Recalled
from promptcache.rows.segments import Segment, SharedSegment, linked_segments, shared_segments
from promptcache.rows.step_graphs import StepGraphs
from promptcache.rows.tails import Tails

Work: TypeAlias = Sequence[tuple[Row, Sequence[int]]]
"""Rows with their next token IDs. Each row occurs once at most and has at least one token."""

_Result = TypeVar("_Result")


class Batch:
    """Rows that share forward passes. Not thread-safe.

    Attributes:
        tails: Memory of the KV of the rows' own tokens.
    """

    def __init__(self, model: Model, copies: Copies | None = None, graphs: StepGraphs | None = None) -> None:
        """Create an empty batch.

        Args:
            copies: Those of moved and of joined segments; None keeps none.
            graphs: Recorded steps of the model; None starts all kernels of a step one by one.
        """
        self._model = model
        self._copies = without_cache(model) if copies is None else copies
        self._graphs = graphs
        self._rows: list[Row] = []
        self._shared: SharedKV | None = None  # None after the set of rows changed
        self.tails = Tails(model.shape)

    def join(self, tokens: RequestTokens, kv_of: Mapping[Encoding, KV], recalled: Recalled | None = None) -> Row:
        """Add a request. Nothing is computed.

        Args:
            tokens: Its new tokens are not computed before they are passed to `step`.
            kv_of: KV of at least every encoding that the request has parts of. The row holds it until it leaves.
            recalled: The own tokens with the KV that history has of them. The others are the request's new tokens.
        """
        self._model.check_vocabulary(tokens.token_ids)
        if recalled is not None:
            tokens = replace(
                tokens,
                token_ids=tuple(tokens.token_ids[index] for index in recalled.missing),
                position_ids=tuple(tokens.position_ids[index] for index in recalled.missing),
            )
        stored, growing = linked_segments(tokens, kv_of, recalled)
        self._copies.count_use(stored, tokens.position_ids)
        row = Row(
            tokens=tokens,
            planned=np.array(tokens.position_ids, dtype=np.int64),
            stored=stored,
            growing=growing,
            tail=self._copies.with_room(partial(self.tails.take, len(tokens.token_ids))),
        )
        self._rows.append(row)
        self._shared = None
        return row

    def leave(self, row: Row) -> None:
        """Remove a row and free its memory."""
        self._rows.remove(row)
        self._shared = None
        self.tails.give_back(row.tail)

    def own_kv(self, row: Row) -> KV:
        """Return the KV of own tokens, views `[L, Hkv, n, D]`, valid until the row computes more tokens or leaves."""
        memory = self.tails.memory(row.tail)
        return KV(keys=memory.keys[:, :, : row.num_own], values=memory.values[:, :, : row.num_own])

    def segments(self, row: Row) -> tuple[Segment, ...]:
        """Return the segments of a row's stored KV, in position order, as passes attend to them."""
        shared = self._copies.with_room(self._shared_kv)
        used = shared.users[:, shared.index_of[row]]
        return tuple(sorted(compress(shared.segments, used), key=lambda segment: segment.first))

    def step(self, work: Work, *, num_last: int | None = 1) -> torch.Tensor:
        """Compute tokens of some rows in one forward pass, and return logits.

        The first own tokens of a row have the positions of its request. Each later one follows the one before it. If
        the device has no memory for it, the memory store makes room, and it is run again.

        Args:
            num_last: Return the logits of so many last tokens of each row; None means all.

        Returns:
            `[K, V]`, in the order of `work`. If the forward pass raises, the rows are as before.
        """

        def logits(opened: Pass) -> torch.Tensor:
            kept = opened.last(num_last)
            found = None if self._graphs is None else self._graphs.compute(opened, kept)
            if found is not None:
                return found
            keep = to_device(torch.tensor(kept), self._model.device)
            cache = step_cache(opened, self._model.shape.num_layers)
            return self._model.forward(opened.token_ids, opened.position_ids, cache, keep=keep)[0]

        return self.run(work, logits)

    def encode(self, work: Work, check: StopCheck | None = None) -> None:
        """As `step`, for the KV only. `check` is called in each layer, before its KV is written."""

        def compute(opened: Pass) -> None:
            cache = step_cache(opened, self._model.shape.num_layers)
            self._model.encode(opened.token_ids, opened.position_ids, cache)

        self.run(work, compute, check)

    def open(self, work: Work, check: StopCheck | None = None) -> Pass:
        """Return the pass over the next tokens of some rows. `Pass.finish` is called when it was run."""
        assert len({row for row, _ in work}) == len(work) > 0, "each row occurs once"
        assert all(token_ids for _, token_ids in work), "each row has tokens"
        for row, token_ids in work:
            if row.num_own + len(token_ids) > row.tail.size:
                row.tail = self.tails.grown(row.tail, row.num_own, row.num_own + len(token_ids))
        return Pass(work, self._shared_kv(), self.tails, self._model, check)

    @torch.no_grad()
    def run(self, work: Work, run: Callable[[Pass], _Result], check: StopCheck | None = None) -> _Result:
        """Return `run(opened)` for the pass over the next tokens of some rows, and count them as computed.

        If the device has no memory for it, the memory store makes room, and it is run again.
        """

        def computed() -> _Result:
            opened = self.open(work, check)
            result = run(opened)
            opened.finish()
            return result

        return self._copies.with_room(computed)

    def _shared_kv(self) -> SharedKV:
        if self._shared is not None:
            return self._shared
        alike: dict[tuple[int, ...], list[Segment]] = {}
        for segment, users in shared_segments([row.stored for row in self._rows]):
            alike.setdefault(users, []).append(segment)
        shared: list[SharedSegment] = []
        for users, segments in alike.items():
            between = sorted({position for index in users for position in self._rows[index].tokens.position_ids})
            fewer, num_copied = self._copies.coalesce(sorted(segments, key=lambda each: each.first), between)
            shared += [(segment, users) for segment in fewer]
            self._rows[users[0]].num_copied += num_copied
        shared += shared_segments([row.growing for row in self._rows])
        self._shared = SharedKV(self._rows, shared)
        return self._shared
