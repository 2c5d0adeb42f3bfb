"""Inputs for the caller's own loop: a linked prompt as transformers takes one whose cache is filled.

They are the IDs of the whole prompt, and a cache with the KV of all its tokens but the last. The cache attends to
stored KV where it is, or it is a plain `DynamicCache` with a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from promptcache.attention import PositionArray, PreparedAttention
from promptcache.diagnostics import UnsupportedModel
from promptcache.encode import CHUNK_TOKENS, Executor, prepare
from promptcache.layout import Encoding, Plan, RequestTokens
from promptcache.model import Model, PositionedCache, PositionedDynamicCache, linked_cache, token_tensor
from promptcache.rows import Batch, Pass, Row, Segment


class _LinkedRows:
    """`LinkedRows` of a prompt: at first one row, over the KV of all tokens but the last.

    The new ones among them are computed here. They are stored KV for the rows, so rows of beams share them.
    """

    def __init__(self, plan: Plan, executor: Executor) -> None:
        prepared = prepare(plan, executor)
        tokens, stored = prepared.plan.tokens, prepared.fetched.kv_of
        self._batch = Batch(executor.model, executor.copies)
        row, own_ids = self._batch.join(tokens, stored), tokens.token_ids[:-1]
        for start in range(0, len(own_ids), CHUNK_TOKENS):
            self._batch.encode([(row, own_ids[start : start + CHUNK_TOKENS])])
        parts, self._handles = tokens.parts, dict(stored)
        if own_ids:
            # Other parts may lie between its tokens. No segment joins them: `row` stays, and does not use this part.
            own = Encoding(token_ids=own_ids, position_ids=tokens.position_ids[:-1], context=tokens.parts)
            parts = (*parts, own.whole)
            self._handles[own] = self._batch.own_kv(row)
        self._tokens = RequestTokens(
            parts=parts, token_ids=tokens.token_ids[-1:], position_ids=tokens.position_ids[-1:]
        )
        self._rows = [self._join()]
        self._num_stored = sum(part.num_tokens for part in parts)
        self._pass: Pass | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of the prompt."""
        return self._batch.segments(self._rows[0])

    @property
    def attention(self) -> PreparedAttention:
        assert self._pass is not None, "a pass was opened"
        return self._pass.attention

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def num_held(self) -> int:
        return self._num_stored + self._rows[0].num_own

    @torch.no_grad()
    def open(self, num_rows: int, num_tokens: int) -> None:
        if num_rows != len(self._rows):
            self.select([row for row in range(len(self._rows)) for _ in range(num_rows // len(self._rows))])
        self._pass = self._batch.open([(row, (0,) * num_tokens) for row in self._rows])

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        assert self._pass is not None, "a pass was opened"
        self._pass.write(layer, keys, values)
        if self._pass.is_computed:
            self._pass.finish()

    def keep(self, num_tokens: int) -> None:
        for row in self._rows:
            row.num_own = max(0, min(row.num_own, num_tokens - self._num_stored))

    @torch.no_grad()
    def select(self, indices: Sequence[int]) -> None:
        if [*indices] == [*range(len(self._rows))]:
            return
        own = [self._batch.own_kv(row) for row in self._rows]
        copies = [(own[index].keys.clone(), own[index].values.clone()) for index in indices]
        while len(self._rows) < len(indices):
            self._rows.append(self._join())
        while len(self._rows) > len(indices):
            self._batch.leave(self._rows.pop())
        for row, (keys, values) in zip(self._rows, copies, strict=True):
            self._batch.refill(row, keys, values)

    def _join(self) -> Row:
        return self._batch.join(self._tokens, self._handles)


@torch.no_grad()
def linked_inputs(plan: Plan, executor: Executor) -> dict[str, Any]:
    """Return `input_ids`, `attention_mask` and `past_key_values`. The cache attends to stored KV where it is."""
    rows = _LinkedRows(plan, executor)
    cache = PositionedCache(layers=linked_cache(rows, executor.model.shape.num_layers).layers)
    return _inputs(cache, _positions(rows.segments, plan.tokens), plan.tokens, executor.model)


@torch.no_grad()
def dynamic_cache_inputs(plan: Plan, executor: Executor) -> dict[str, Any]:
    """Return the same with a `DynamicCache` of transformers, with a copy of all KV in the order of positions.

    Raises:
        UnsupportedModel: The model has sliding windows, which such a cache counts in tokens, and the prompt has a gap
            in its positions that a window reaches over.
    """
    model, tokens, segments = executor.model, plan.tokens, _LinkedRows(plan, executor).segments
    positions = _positions(segments, tokens)
    _check_windows(np.sort(positions), model)
    order = torch.from_numpy(np.argsort(positions[:-1])).to(model.device)
    views = [segment.layers().by_layer for segment in segments]
    cache = PositionedDynamicCache()  # it holds all tokens, also beyond a sliding window
    for layer in range(model.shape.num_layers if views else 0):
        keys, values = (torch.cat([each[layer][kind] for each in views], dim=2)[:, :, order] for kind in range(2))
        cache.update(keys, values, layer)
    return _inputs(cache, positions, tokens, model, is_shared=True)


def _positions(segments: tuple[Segment, ...], tokens: RequestTokens) -> PositionArray:
    """Return the positions of the tokens of segments, and of the last token behind them."""
    arrays = [segment.position_array() for segment in segments]
    return np.concatenate([*arrays, np.array(tokens.position_ids[-1:])])


def _inputs(
    cache: Any, positions: PositionArray, tokens: RequestTokens, model: Model, *, is_shared: bool = False
) -> dict[str, Any]:
    token_ids = token_tensor(tokens.used_ids, model.device)
    cache.place(np.sort(positions)[None], model.hf, model.guard, token_ids=token_ids, is_shared=is_shared)
    return {"input_ids": token_ids, "attention_mask": torch.ones_like(token_ids), "past_key_values": cache}


def _check_windows(positions: PositionArray, model: Model) -> None:
    """Refuse positions whose last window of tokens has a gap.

    Args:
        positions: Of all tokens of the prompt, ascending.
    """
    window = model.facts.window
    if window is None:
        return
    for before, after in pairwise(positions[-window:].tolist()):
        if after != before + 1:
            raise UnsupportedModel(
                f"{model.facts.name} has sliding windows of {window} positions, and a DynamicCache counts them in "
                f"tokens: this prompt has no token between positions {before} and {after}, so its windows would reach "
                "too far. Use link()"
            )
