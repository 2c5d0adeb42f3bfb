"""Tails: memory for the KV that requests add themselves.

Requests of similar length share a slab, so that their newest tokens need one kernel call. A tail holds 64, 128, 256, …
tokens; a request that outgrows its tail moves to a larger one. A tail is filled with zeros before each use: kernels
read the memory behind its last token under a mask, and 0 x NaN is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from promptcache.kv import KV, KVShape, LayerViews

_SMALLEST_TAIL = 64


def tail_size(num_tokens: int) -> int:
    """Return the size of the smallest tail that holds `num_tokens` tokens."""
    return max(_SMALLEST_TAIL, 1 << (num_tokens - 1).bit_length())


class Tail(NamedTuple):
    """Memory of one request: a slot of the slab for tails of `size` tokens."""

    size: int
    slot: int


class TailSlab:
    """The tails of one size.

    Attributes:
        keys, values: `[L, slots, Hkv, C, D]`, C tokens in each tail. Slots in `free` hold anything.
        free: The slots that no request uses.
    """

    def __init__(self, shape: KVShape, size: int, num_slots: int) -> None:
        states = (shape.num_layers, num_slots, shape.num_kv_heads, size, shape.head_dim)
        with torch.inference_mode(mode=False):  # as for `KV.empty`
            self.keys, self.values = (torch.empty(states, dtype=shape.dtype, device=shape.device) for _ in range(2))
        self.free = {*range(num_slots)}


class Tails:
    """The tails of all requests of a batch.

    Attributes:
        slabs: The slab for each size of tails. A slab without a request is freed.
    """

    def __init__(self, shape: KVShape) -> None:
        self._shape = shape
        self.slabs: dict[int, TailSlab] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all slabs."""
        return sum(slab.keys.nbytes + slab.values.nbytes for slab in self.slabs.values())

    def take(self, num_tokens: int) -> Tail:
        """Return a tail for at least `num_tokens` tokens, filled with zeros: the lowest free slot of its slab.

        The number of slots doubles if none is free.
        """
        size = tail_size(num_tokens)
        slab = self.slabs.get(size)
        if slab is None:
            slab = self.slabs[size] = TailSlab(self._shape, size, 1)
        elif not slab.free:
            num_slots = slab.keys.shape[1]
            larger = TailSlab(self._shape, size, 2 * num_slots)
            larger.keys[:, :num_slots] = slab.keys
            larger.values[:, :num_slots] = slab.values
            larger.free -= {*range(num_slots)}
            slab = self.slabs[size] = larger
        slot = min(slab.free)
        slab.free.remove(slot)
        slab.keys[:, slot].zero_()
        slab.values[:, slot].zero_()
        return Tail(size, slot)

    def give_back(self, tail: Tail) -> None:
        """Free a tail, and its slab if no other request uses it."""
        slab = self.slabs[tail.size]
        slab.free.add(tail.slot)
        if len(slab.free) == slab.keys.shape[1]:
            del self.slabs[tail.size]

    def grown(self, tail: Tail, num_held: int, num_tokens: int) -> Tail:
        """Return a larger tail for `num_tokens` tokens with the first `num_held` of `tail`, which is given back."""
        larger = self.take(num_tokens)
        source, target = self.memory(tail), self.memory(larger)
        target.keys[:, :, :num_held] = source.keys[:, :, :num_held]
        target.values[:, :, :num_held] = source.values[:, :, :num_held]
        self.give_back(tail)
        return larger

    def memory(self, tail: Tail) -> KV:
        """Return the keys and values of one tail, views `[L, Hkv, C, D]`."""
        slab = self.slabs[tail.size]
        return KV(keys=slab.keys[:, tail.slot], values=slab.values[:, tail.slot])

    def views(self, size: int, first: int, last: int, num_tokens: int) -> LayerViews:
        """Return the first `num_tokens` tokens of the tails in slots `first` to `last`, `[R, Hkv, S, D]` per layer."""
        slab = self.slabs[size]
        keys, values = (states[:, first : last + 1, :, :num_tokens].unbind(0) for states in (slab.keys, slab.values))
        return LayerViews(zip(keys, values, strict=True))
