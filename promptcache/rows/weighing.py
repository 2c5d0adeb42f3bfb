"""How much the new tokens of a request attend to each position: a forward pass that ends in a middle layer.

Attention of middle layers, summed over heads and tokens, says which cached tokens a question is about. No matrix of
scores is kept: each layer adds to one number for each position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch

from promptcache.attention import AttentionCall, PreparedAttention, to_device
from promptcache.kv import KV
from promptcache.layout import Encoding, RequestTokens
from promptcache.model import Model, step_cache
from promptcache.rows.batch import Batch
from promptcache.rows.coalesce import Copies
from promptcache.rows.forward_pass import Pass, Row

_MIDDLE = (0.4, 0.7)
"""Shares of the depth between which the layers are (measured: docs/decisions.md, "Repair")."""

_NUM_LAYERS = 5

_MAX_SCORES = 1 << 23
"""Maximum number of scores at a time, in float32 32 MiB."""


def attention_weights(
    tokens: RequestTokens, kv_of: Mapping[Encoding, KV], model: Model, copies: Copies | None, chunk_tokens: int
) -> list[float]:
    """Return how much the new tokens of a request attend to each position up to the last one.

    Args:
        tokens: The request. Nothing that is computed for it is kept.
        chunk_tokens: Maximum number of tokens in one forward pass.
    """
    batch = Batch(model, copies)
    row = batch.join(tokens, kv_of)
    layers = middle_layers(model.facts.windows)
    found = torch.zeros(tokens.position_ids[-1] + 1, dtype=torch.promote_types(model.shape.dtype, torch.float32))

    def weigh(opened: Pass) -> torch.Tensor:
        """Run a pass up to the last of the layers; return their attention by position."""
        weighing = _Weighing(opened, batch, row, layers, model, len(found))
        with suppress(_Enough):
            model.encode(opened.token_ids, opened.position_ids, step_cache(weighing, model.shape.num_layers))
        return weighing.weights

    for start in range(0, len(tokens.token_ids), chunk_tokens):
        found += batch.run([(row, tokens.token_ids[start : start + chunk_tokens])], weigh).cpu()
    return found.tolist()


def middle_layers(windows: Sequence[int | None]) -> tuple[int, ...]:
    """Return the indices of at most five layers in the middle, of those with full attention if there are any.

    Args:
        windows: For each layer the sliding window, or None for full attention.
    """
    full = [index for index, window in enumerate(windows) if window is None] or [*range(len(windows))]
    first, last = (share * (len(full) - 1) for share in _MIDDLE)
    return tuple(sorted({full[round(place)] for place in np.linspace(first, last, _NUM_LAYERS)}))


class _Enough(Exception):
    """Ends a forward pass whose further layers are not needed."""


class _Weighing:
    """A pass over one row, and its attention, which adds up how much each position is attended to.

    Attributes:
        weights: Of each position, summed over layers, heads and tokens.
    """

    def __init__(
        self, opened: Pass, batch: Batch, row: Row, layers: Sequence[int], model: Model, num_positions: int
    ) -> None:
        self._opened, self._layers = opened, layers
        stop = row.num_own + len(opened.token_list)
        self._own = batch.tails.memory(row.tail).layers(0, stop)
        self._views = [segment.layers() for segment in opened.tokens.segments]
        stored = [segment.position_array() for segment in opened.tokens.segments]
        positions = torch.from_numpy(np.concatenate([*stored, row.positions(0, stop)]))
        self._keys_at = to_device(positions, model.device)
        wide = torch.promote_types(model.shape.dtype, torch.float32)
        self.weights = torch.zeros(num_positions, dtype=wide, device=model.device)

    @property
    def attention(self) -> PreparedAttention:
        return self

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._opened.write(layer, keys, values)

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, as `PassAttention`. The last layer that is needed ends the pass."""
        if layer in self._layers:
            views = (each[layer][0] for each in (*self._views, self._own))
            keys = torch.cat([*views], dim=2)[0].to(self.weights.dtype)  # [Hkv, S, D]
            query, positions = call.query[0].to(self.weights.dtype), self._opened.position_ids[0]
            size = max(1, _MAX_SCORES // (len(query) * keys.shape[1]))
            for start in range(0, len(positions), size):
                some = slice(start, start + size)
                distance = positions[some, None] - self._keys_at
                self.weights.index_add_(0, self._keys_at, _probabilities(query[:, some], keys, distance, call))
        if layer == self._layers[-1]:
            raise _Enough
        return self._opened.attention.run(layer, call)


def _probabilities(
    query: torch.Tensor, keys: torch.Tensor, distance: torch.Tensor, call: AttentionCall
) -> torch.Tensor:
    """Return how much queries `[Hq, T, D]` attend to keys `[Hkv, S, D]`, summed over heads and queries, `[S]`.

    Args:
        distance: `[T, S]`, position of the query minus position of the key.
    """
    grouped = query.reshape(len(keys), -1, query.shape[2])  # query heads that share keys, side by side
    scores = (grouped @ keys.transpose(1, 2)).view(*query.shape[:2], -1) * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    seen = distance >= 0
    if call.window is not None:
        seen &= distance < call.window
    scores = scores.masked_fill(~seen, -torch.inf)
    total = scores.logsumexp(-1, keepdim=True)
    if call.sinks is not None:
        total = torch.logaddexp(total, call.sinks.to(total.dtype)[:, None, None])
    return (scores - total).exp().sum((0, 1))
