"""One forward pass `[1, T]` over the new tokens of several rows, without padding.

Each token attends to the stored KV of its row and to the row's new tokens up to itself. Stored KV that several rows use
is attended to once for all of them. The KV of new tokens is not copied: the pass keeps what the layers return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from promptcache.diagnostics import InvalidValue
from promptcache.runtime.attention import RowChunk, StepAttention, StepTokens
from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.runtime.hf.step_layer import step_cache
from promptcache.runtime.history import OwnKV
from promptcache.runtime.link import segment_users, shared_segments
from promptcache.runtime.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """New tokens of one row at consecutive positions from `first`, with the stored KV before them."""

    segments: tuple[Segment, ...]
    token_ids: Sequence[int]
    first: int


class PackedRows:
    """The new tokens of several rows in one forward pass. It serves one pass.

    Attributes:
        stops: For each row the end of its tokens in the pass.
        attention: Of all tokens to the stored KV of their rows.
    """

    def __init__(self, rows: Sequence[NewTokens], model: Model) -> None:
        self._sizes = [len(row.token_ids) for row in rows]
        self.stops = tuple(accumulate(self._sizes))
        shared = tuple(shared_segments([row.segments for row in rows]))
        self._token_ids = [token_id for row in rows for token_id in row.token_ids]
        positions = [np.arange(row.first, row.first + len(row.token_ids), dtype=np.int64) for row in rows]
        self._positions = np.concatenate(positions)
        self.attention = StepAttention(
            StepTokens(
                segments=tuple(each.segment for each in shared),
                users=np.repeat(segment_users(shared, len(rows)), self._sizes, axis=1),
                positions=self._positions,
                groups=(),
                chunks=tuple(
                    RowChunk(start=stop - size, stop=stop, older=None)
                    for size, stop in zip(self._sizes, self.stops, strict=True)
                ),
                device=model.device,
            )
        )
        self._kv: list[tuple[torch.Tensor, torch.Tensor]] = []  # [Hkv, T, D], by layer
        self._model = model

    def inputs(self) -> dict[str, Any]:
        """Return keywords for the forward pass of the transformers model; logits are those of each row's last token.

        This object does not hold them: a cycle would keep stored KV in use until the garbage collector runs.
        """
        model = self._model
        return {
            "input_ids": token_tensor(self._token_ids, model.device),
            "position_ids": torch.from_numpy(self._positions)[None].to(model.device),
            "attention_mask": None,
            "past_key_values": step_cache(self, model.shape.num_layers),
            "use_cache": True,
            **model.only_logits_of([stop - 1 for stop in self.stops]),
        }

    def encode(self) -> None:
        """Compute the KV without logits."""
        inputs = self.inputs()
        self._model.encode(inputs["input_ids"], inputs["position_ids"], inputs["past_key_values"])

    @property
    def is_computed(self) -> bool:
        """Whether the forward pass is complete."""
        return len(self._kv) == self._model.shape.num_layers

    def own_kv(self, row: int) -> OwnKV:
        """Return the KV of a row's new tokens."""
        stop = self.stops[row]
        tokens = slice(stop - self._sizes[row], stop)
        return [(keys[:, tokens], values[:, tokens]) for keys, values in self._kv]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep and return keys and values `[1, Hkv, T, D]` of one layer."""
        if layer != len(self._kv):
            raise InvalidValue(
                "these inputs were used: they serve one forward pass of the engine's model. Call get again for another"
            )
        self._kv.append((keys.detach()[0], values.detach()[0]))
        return keys, values
