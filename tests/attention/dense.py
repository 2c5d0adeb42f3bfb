"""A toy backend: dense attention in float64, written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from promptcache.attention import AttentionCall, AttentionSpec, PassTokens, PositionArray


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


@dataclass(frozen=True, slots=True)
class PreparedDense:
    """Dense attention over concatenated keys."""

    tokens: PassTokens
    spec: AttentionSpec

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Concatenate all keys that a token of the pass may attend to, and attend by position."""
        tokens, keys, masks = self.tokens, [call[1:3]], []
        own = np.zeros((len(tokens.positions), len(tokens.positions)), dtype=np.bool_)
        for chunk in tokens.chunks:
            own[chunk.start : chunk.stop, chunk.start : chunk.stop] = True
            if chunk.older is not None:
                of_row = np.zeros(len(tokens.positions), dtype=np.bool_)
                of_row[chunk.start : chunk.stop] = True
                keys.append(chunk.older.layers()[layer])
                masks.append(self._mask(call.window, chunk.older.position_array(), of_row))
        for group in tokens.groups:
            tails = group.views[layer]
            for token, index, placed in zip(
                range(group.start, group.stop), group.indices, group.positions, strict=True
            ):
                keys.append((tails[0][index : index + 1], tails[1][index : index + 1]))
                masks.append(self._mask(call.window, placed, np.arange(len(tokens.positions)) == token))
        for segment, users in zip(tokens.segments, tokens.users, strict=True):
            keys.append(segment.layers()[layer])
            masks.append(self._mask(call.window, segment.position_array(), users))
        mask = np.concatenate([self._mask(call.window, tokens.positions, None) & own, *masks], axis=1)
        all_keys, all_values = (torch.cat(each, dim=2) for each in zip(*keys, strict=True))
        out, _ = dense_attention(
            call.query,
            all_keys,
            all_values,
            scale=call.scale,
            mask=torch.from_numpy(mask).to(call.query.device),
            softcap=self.spec.softcap,
            sinks=call.sinks,
        )
        return out.transpose(1, 2).to(call.query.dtype)

    def _mask(self, window: int | None, placed: PositionArray, of_row: Any) -> Any:
        """Return bool `[T, S]`: tokens of a row attend to positions up to their own, within the window."""
        distance = self.tokens.positions[:, None] - placed
        seen = (distance >= 0) & (distance < (window or 1 << 62))
        return seen if of_row is None else seen & of_row[:, None]


class DenseBackend:
    """The toy backend."""

    name = "dense"

    def supports(self, spec: AttentionSpec) -> bool:
        """Always True."""
        return True

    def prepare(self, tokens: PassTokens, window: int | None, spec: AttentionSpec) -> PreparedDense:
        """Keep the tokens."""
        return PreparedDense(tokens, spec)
