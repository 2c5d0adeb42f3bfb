"""A batch as transformers' `generate` takes it: all tokens of padded rows, and a cache of their first columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from promptcache.diagnostics import InvalidValue
from promptcache.runtime.attention import PositionArray
from promptcache.runtime.hf.model import Model
from promptcache.runtime.hf.positioned_cache import PositionedDynamicCache
from promptcache.runtime.history import OwnKV, Recalled
from promptcache.runtime.token_rows import TokenBatch


class PaddedRows:
    """Rows with padding on the left, and a copy of the KV of the columns that all of them have.

    Attributes:
        cache: The first columns of all rows. It grows by the tokens that are computed.
    """

    def __init__(self, batch: TokenBatch, found: Sequence[Recalled], model: Model) -> None:
        """Copy the KV.

        Args:
            found: What history has of each row.

        Raises:
            InvalidValue: A row has padding on the right.
        """
        self._batch, self._found, self._model = batch, found, model
        num_columns = batch.input_ids.shape[1]
        for index, row in enumerate(batch.rows):
            if row.start + len(row.token_ids) < num_columns:
                raise InvalidValue(
                    f"input_ids[{index}] has padding on the right, behind which generate would continue: pad on the "
                    "left (tokenizer.padding_side = 'left')"
                )
        self.cache = self._filled_cache()
        self.cache.place(self._positions(num_columns), model.hf, model.guard)

    def inputs(self) -> dict[str, Any]:
        """Return keywords for `generate`."""
        device = self._model.device
        input_ids = self._batch.input_ids.to(device, torch.long)
        mask = self._batch.attention_mask
        return {
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids) if mask is None else mask.to(device, torch.long),
            "past_key_values": self.cache,
        }

    def computed(self, output: Any) -> list[tuple[Recalled, tuple[int, ...], OwnKV]]:
        """Return for each row what history had, the tokens of its answer, and the KV that was computed for both.

        Args:
            output: The output object of `generate`; or that of a forward pass, which has no answers.

        Raises:
            InvalidValue: It has other rows, such as beams.
        """
        rows, num_columns = self._batch.rows, self._batch.input_ids.shape[1]
        layers: Sequence[Any] = self.cache.layers
        num_rows = len(layers[0].keys)
        answers: list[list[int]] = [[]] * num_rows
        if (sequences := getattr(output, "sequences", None)) is not None:
            answers = sequences[:, num_columns : self.cache.get_seq_length()].tolist()
        if not len(answers) == num_rows == len(rows):
            raise InvalidValue(
                f"out has {len(answers)} sequences of {len(rows)} rows: update takes one for each row, without beams"
            )
        made: list[tuple[Recalled, tuple[int, ...], OwnKV]] = []
        for index, (row, each, answer) in enumerate(zip(rows, self._found, answers, strict=True)):
            kept = slice(row.start + each.num_found, num_columns + _num_before_padding(answer))
            own_kv = [(layer.keys[index, :, kept], layer.values[index, :, kept]) for layer in layers]
            made.append((each, tuple(answer), own_kv))
        return made

    def _positions(self, num_columns: int) -> PositionArray:
        """Return the position of each column in each row, `[B, T]`."""
        starts = np.array([row.start for row in self._batch.rows], dtype=np.int64)
        return np.arange(num_columns, dtype=np.int64) - starts[:, None]

    def _filled_cache(self) -> PositionedDynamicCache:
        """Return a cache with the columns before the first one that a row lacks; zeros are padding."""
        rows, shape = self._batch.rows, self._model.shape
        num_held = min(row.start + each.num_found for row, each in zip(rows, self._found, strict=True))
        size = (shape.num_layers, len(rows), shape.num_kv_heads, num_held, shape.head_dim)
        keys, values = (torch.zeros(size, dtype=shape.dtype, device=shape.device) for _ in range(2))
        for index, (row, each) in enumerate(zip(rows, self._found, strict=True)):
            column = row.start
            for part in each.stretches[0].parts:
                count = max(0, min(part.num_tokens, num_held - column))
                handle = each.handles[part.encoding]
                keys[:, index, :, column : column + count] = handle.keys[:, :, :count]
                values[:, index, :, column : column + count] = handle.values[:, :, :count]
                column += count
        cache = PositionedDynamicCache()
        for layer in range(shape.num_layers if num_held else 0):
            cache.update(keys[layer], values[layer], layer)
        return cache


def _num_before_padding(answer: Sequence[int]) -> int:
    """Return the length of an answer without a run of one token at its end, which pads rows that ended early."""
    length = len(answer)
    while length > 1 and answer[length - 1] == answer[length - 2]:
        length -= 1
    return length
