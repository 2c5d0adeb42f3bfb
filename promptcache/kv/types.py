"""Keys and values of tokens, and their memory.

These types know no tokens, no positions and no XML. The runtime links the views that they return.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from weakref import WeakValueDictionary

import torch


class Tier(StrEnum):
    """Level of the cache hierarchy. `MEMORY` is the memory of the model's device."""

    MEMORY = "memory"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """Shape of the keys and of the values of one token under a model: `[num_layers, num_kv_heads, head_dim]`."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values together for one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def is_on_gpu(self) -> bool:
        """Whether KV lies on a CUDA device. The meta device stands for one in counts and tests."""
        return self.device.type in {"cuda", "meta"}

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.num_layers} layers, {self.num_kv_heads} KV heads and head dim {self.head_dim} in {dtype} on "
            f"{self.device}"
        )


class LayerViews(list[tuple[torch.Tensor, torch.Tensor]]):
    """Keys and values `[1, Hkv, T, D]` of the same tokens in each layer. It is not changed, and may be known weakly."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, kw_only=True, eq=False)
class KV:
    """Keys and values of tokens in position order. Their memory stays allocated while an object refers to it.

    A store that evicts KV drops its own reference; the memory is free when no request has one either.

    Attributes:
        keys: `[L, Hkv, T, D]`. Of KV that grows, T is the number of tokens that it has room for.
        values: Same shape as `keys`.
    """

    keys: torch.Tensor = field(repr=False)
    values: torch.Tensor = field(repr=False)
    _views: WeakValueDictionary[tuple[int, int], LayerViews] = field(
        default_factory=WeakValueDictionary, init=False, repr=False
    )

    @staticmethod
    def empty(shape: KVShape, num_tokens: int) -> KV:
        """Return uninitialized memory for some tokens.

        Inference mode is switched off. Tensors that it allocates can be written in inference mode only, and KV outlives
        the request that allocated it.
        """
        size = (shape.num_layers, shape.num_kv_heads, room_for(shape, num_tokens), shape.head_dim)
        with torch.inference_mode(mode=False):
            keys, values = (torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(2))
        return KV(keys=keys[:, :, :num_tokens], values=values[:, :, :num_tokens])

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values together."""
        return self.keys.nbytes + self.values.nbytes

    def layers(self, start: int, stop: int) -> LayerViews:
        """Return views of tokens `[start, stop)` in each layer.

        Views of all layers are made at once, which takes a quarter of the time of one call for each layer. A view takes
        600 bytes of memory, so calls for the same tokens share one object while it is alive.
        """
        views = self._views.get((start, stop))
        if views is None:
            keys, values = (states[:, None, :, start:stop].unbind(0) for states in (self.keys, self.values))
            views = self._views[start, stop] = LayerViews(zip(keys, values, strict=True))
        return views


def room_for(shape: KVShape, num_tokens: int) -> int:
    """Return the number of tokens that memory for `num_tokens` tokens has room for.

    On a GPU it is one of eight sizes for each power of two. PyTorch's allocator keeps freed memory for allocations of
    about the same size. Where all sizes differ, what it keeps cannot be used again.
    """
    if not shape.is_on_gpu:
        return num_tokens
    step = max(1, 1 << (num_tokens - 1).bit_length() >> 4)
    return -(-num_tokens // step) * step
