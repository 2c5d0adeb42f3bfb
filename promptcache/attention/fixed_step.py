"""Attention of steps whose operations are recorded once, and run again for the steps of other requests.

A CUDA graph runs kernels with the arguments that they had when it was captured. So everything that differs between
steps lies in memory that the kernels read: the lists of segments, and the places of new KV.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from promptcache.attention.backend import AttentionCall, AttentionSpec
from promptcache.attention.pass_tokens import PassTokens
from promptcache.attention.segment_lists import KeyRange, ListSizes, SegmentLists, key_ranges, make_lists
from promptcache.attention.transfer import write_to_device
from promptcache.attention.triton_backend import ListedAttention, TokenStore
from promptcache.kv import KV, KVShape


class FixedStep:
    """Attention of any step with at most T tokens, by operations that read the step from memory at fixed addresses.

    Tokens behind those of a step attend to each other, and their KV is written to spare memory.
    """

    def __init__(self, num_tokens: int, shape: KVShape, specs: Mapping[int | None, AttentionSpec]) -> None:
        """Allocate the memory.

        Args:
            num_tokens: T.
            shape: Shape of the KV.
            specs: Properties of a step with T tokens, for the layers with each window. The Triton backend takes them.
        """
        self.num_tokens = num_tokens
        self._spare = KV.empty(shape, 1)
        self._store = TokenStore([(self._spare, 0)] * num_tokens, shape.device)
        self._attention = {window: _FixedAttention(spec, window, num_tokens) for window, spec in specs.items()}

    def load(self, tokens: PassTokens, places: Iterable[tuple[KV, int]]) -> bool:
        """Write a step to the memory; return False if there is no room for its lists.

        The caller holds the KV of the step until the operations that read it are queued on the device. Later
        operations cannot overtake them, so the memory of the KV may be used for something else then.

        Args:
            places: For each token the KV of its row, and its index there.
        """
        if not all(each.load(tokens) for each in self._attention.values()):
            return False
        num_spare = self.num_tokens - len(tokens.positions)
        self._store.move([*places, *[(self._spare, 0)] * num_spare])
        return True

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`."""
        return self._attention[call.window].run(layer, call)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values `[T, Hkv, D]` of one layer."""
        self._store.write(layer, keys, values)


class _FixedAttention(ListedAttention):
    """Attention of the layers with one window."""

    def __init__(self, spec: AttentionSpec, window: int | None, num_tokens: int) -> None:
        super().__init__(spec, window, num_tokens)
        self._num_tokens, self._num_kv_heads = num_tokens, spec.queries.num_kv_heads
        room = ListSizes.room(num_tokens, self._num_kv_heads, self._tokens_at_once, has_window=window is not None)
        self._load(SegmentLists.fixed(room, spec.device))

    def load(self, tokens: PassTokens) -> bool:
        """Write the lists of a step; return False if there is no room for them."""
        num_tokens = len(tokens.positions)
        positions = np.zeros(self._num_tokens, dtype=np.int64)
        positions[:num_tokens] = tokens.positions
        ranges = [*key_ranges(tokens, self._window)]
        if num_tokens < self._num_tokens:
            ranges.append(KeyRange(np.arange(num_tokens, self._num_tokens), num_tokens, self._num_tokens, None))
        lists = make_lists(
            ranges,
            positions,
            num_kv_heads=self._num_kv_heads,
            tokens_at_once=self._tokens_at_once,
            compares_own=self._window is not None,
            holds=(),
        )
        numbers = lists.spread(self._lists)
        if numbers is None:
            return False
        write_to_device(self._numbers[: len(numbers)], numbers)
        return True

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`."""
        self._allocate()  # while recording, from memory that layers and recordings share
        found = super().run(layer, call)
        del self._partial, self._lse
        return found
