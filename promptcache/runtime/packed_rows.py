"""One forward pass `[1, T]` over tokens of several rows, side by side and without padding.

Each token attends to the stored KV of its row and to the row's own tokens up to itself. Stored KV that several rows use
is attended to once for all of them. `PackedTokens` prepares any such pass, also the steps of a batch. `PackedRows`
keeps the KV as the layers return it, without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from promptcache.diagnostics import InvalidValue
from promptcache.runtime.attention import (
    KVView,
    PositionArray,
    RowChunk,
    StepAttention,
    StepTokens,
    TailGroup,
    to_device,
)
from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.runtime.hf.positioned_cache import PositionedCache
from promptcache.runtime.hf.step_layer import step_cache
from promptcache.runtime.history import OwnKV
from promptcache.runtime.link import segment_users, shared_segments
from promptcache.runtime.segments import Segment


class PackedTokens:
    """The tokens of one forward pass, and their attention.

    Attributes:
        stops: For each row the end of its tokens in the pass.
        token_list: The T token IDs.
        tokens: Their positions, and all KV that they attend to.
        attention: Of all tokens to the KV of their rows.
    """

    def __init__(
        self,
        rows: Sequence[tuple[Sequence[int], PositionArray]],
        segments: Sequence[KVView],
        users: npt.NDArray[np.bool_],
        device: torch.device,
        *,
        groups: Sequence[TailGroup] = (),
        older: Mapping[int, KVView] | None = None,
    ) -> None:
        """Prepare a pass.

        Args:
            rows: For each row its token IDs, at least one, and their positions.
            segments: The stored KV of all rows.
            users: Bool `[number of segments, number of rows]`, whether a row uses a segment.
            groups: Tails of the first rows, which have one token each. The other rows are chunks.
            older: For chunks, by row, own tokens of the row that were computed before.
        """
        sizes = [len(token_ids) for token_ids, _ in rows]
        self.stops = tuple(accumulate(sizes))
        positions = np.concatenate([own for _, own in rows])
        self.token_list = [token_id for token_ids, _ in rows for token_id in token_ids]
        first_chunk = groups[-1].stop if groups else 0  # the rows before it have one token each
        self.tokens = StepTokens(
            segments=tuple(segments),
            users=np.repeat(users, sizes, axis=1),
            positions=positions,
            groups=tuple(groups),
            chunks=tuple(
                RowChunk(start=stop - sizes[row], stop=stop, older=(older or {}).get(row))
                for row, stop in enumerate(self.stops)
                if row >= first_chunk
            ),
            device=device,
        )
        self.attention = StepAttention(self.tokens)

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """The token IDs on the device, `[1, T]`."""
        return token_tensor(self.token_list, self.tokens.device)

    @cached_property
    def position_ids(self) -> torch.Tensor:
        """The positions on the device, `[1, T]`."""
        return to_device(torch.from_numpy(self.tokens.positions)[None], self.tokens.device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewTokens:
    """New tokens of one row at increasing positions, with the stored KV before them."""

    segments: tuple[Segment, ...]
    token_ids: Sequence[int]
    positions: PositionArray


class PackedRows(PackedTokens):
    """The new tokens of several rows in one forward pass. It serves one pass."""

    def __init__(self, rows: Sequence[NewTokens], model: Model) -> None:
        shared = tuple(shared_segments([row.segments for row in rows]))
        super().__init__(
            [(row.token_ids, row.positions) for row in rows],
            [each.segment for each in shared],
            segment_users(shared, len(rows)),
            model.device,
        )
        self._kv: list[tuple[torch.Tensor, torch.Tensor]] = []  # [Hkv, T, D], by layer
        self._model = model

    def inputs(self) -> dict[str, Any]:
        """Return keywords for the forward pass of the transformers model; logits are those of each row's last token.

        This object does not hold them: a cycle would keep stored KV in use until the garbage collector runs.
        """
        cache = PositionedCache(layers=step_cache(self, self._model.shape.num_layers).layers)
        cache.place(self.tokens.positions[None], self._model.hf, self._model.guard)
        return {
            "input_ids": self.token_ids,
            "position_ids": self.position_ids,
            "attention_mask": None,
            "past_key_values": cache,
            "use_cache": True,
            **self._model.only_logits_of([stop - 1 for stop in self.stops]),
        }

    def encode(self) -> None:
        """Compute the KV without logits."""
        self._model.encode(self.token_ids, self.position_ids, step_cache(self, self._model.shape.num_layers))

    @property
    def is_computed(self) -> bool:
        """Whether the forward pass is complete."""
        return len(self._kv) == self._model.shape.num_layers

    def own_kv(self, row: int) -> OwnKV:
        """Return the KV of a row's new tokens."""
        tokens = slice(self.stops[row - 1] if row else 0, self.stops[row])
        return [(keys[:, tokens], values[:, tokens]) for keys, values in self._kv]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep and return keys and values `[1, Hkv, T, D]` of one layer."""
        if layer != len(self._kv):
            raise InvalidValue(
                "these inputs were used: they serve one forward pass of the engine's model. Call get again for another"
            )
        self._kv.append((keys.detach()[0], values.detach()[0]))
        return keys, values
