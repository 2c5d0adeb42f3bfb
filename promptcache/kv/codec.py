"""How KV rests: as computed, or quantized to one byte or half a byte a number.

Comes in: keys and values. Goes out: named tensors on the host, and keys and values again. This file knows no files and
no stores.

Quantization is by groups of neighbouring numbers between the lowest and the highest of a group, which are kept as they
are; the numbers between them become the nearest of evenly spaced levels. Keys are grouped along tokens, channel by
channel, for a channel keeps its size from token to token; values along the channels of one token (after KIVI, Liu et
al., ICML 2024). Laws, all in `tests/kv/test_codec.py`: no number moves by more than half a step and its rounding to the
dtype; what was quantized once is quantized to itself; a group that holds NaN or infinity comes back as NaN, never as
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from promptcache.diagnostics import StoreError, one_of
from promptcache.kv.keys import Codec, Recipe
from promptcache.kv.types import KVShape

_HOST = torch.device("cpu")
_CODEC = one_of(Codec)


class Form(NamedTuple):
    """Dtype and shape of one tensor of a stored encoding, as its codec prescribes."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredEncoding:
    """An encoding as a blob tier stores it: its recipe and its packed tensors.

    Attributes:
        recipe: Its key is the name that it is stored under; its codec says what `tensors` are.
        shape: Of the KV that it unpacks to; the device is that of `tensors`, the host.
        tensors: By name, contiguous, on the host. Those that a tier returns may be mapped from a file. They stay valid
            after the encoding was deleted, and must not be changed.
        facts: What else is kept with it, as text, such as the loss of its codec that was measured when it was packed.
    """

    recipe: Recipe
    shape: KVShape
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Quantizer(NamedTuple):
    """What a lossy codec does.

    Attributes:
        steps: Levels of a group, less one.
        per_byte: Numbers in a byte.
        key_group: Tokens of a channel that share their bounds, for each byte of the dtype; a rest joins the last group.
        value_group: As `key_group`, channels of a token.
    """

    steps: int
    per_byte: int
    key_group: int
    value_group: int


QUANTIZERS: Mapping[Codec, Quantizer] = {
    Codec.INT8: Quantizer(steps=255, per_byte=1, key_group=128, value_group=32),
    Codec.INT4: Quantizer(steps=15, per_byte=2, key_group=32, value_group=32),
}
"""Bounds take 2 numbers a group: against the numbers themselves 1/16 and 1/64 of int8, 1/8 of int4, whatever dtype."""


def codec_named(name: str) -> Codec:
    """Return how KV is kept under this name.

    Raises:
        StoreError: There is no such codec.
    """
    _CODEC.check("keep", name, StoreError)
    return Codec(name)


def forms(codec: Codec, shape: KVShape, num_tokens: int) -> Mapping[str, Form]:
    """Return which tensors, in which forms, an encoding rests as."""
    layers, heads, width = shape.num_layers, shape.num_kv_heads, shape.head_dim
    if codec is Codec.FULL:
        whole = Form(shape.dtype, (layers, heads, num_tokens, width))
        return {"keys": whole, "values": whole}
    how = QUANTIZERS[codec]
    key_groups = len(_cuts(num_tokens, how.key_group * shape.dtype.itemsize))
    value_groups = len(_cuts(heads * width, how.value_group * shape.dtype.itemsize))
    key_bounds = Form(shape.dtype, (layers, heads, key_groups, width))
    value_bounds = Form(shape.dtype, (layers, num_tokens, value_groups))
    return {
        "keys": Form(torch.uint8, (layers, heads, num_tokens, math.ceil(width / how.per_byte))),
        "keys.low": key_bounds,
        "keys.high": key_bounds,
        "values": Form(torch.uint8, (layers, num_tokens, math.ceil(heads * width / how.per_byte))),
        "values.low": value_bounds,
        "values.high": value_bounds,
    }


def kept_bytes(codec: Codec, shape: KVShape, num_tokens: int) -> int:
    """Return the bytes of an encoding as its codec stores it, without the header of a file."""
    return sum(form.nbytes for form in forms(codec, shape, num_tokens).values())


def to_stored(recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> StoredEncoding:
    """Return an encoding as it rests under its recipe's codec; the tensors given are not changed and not kept.

    Args:
        keys: `[L, Hkv, T, D]`, on any device.
        values: As `keys`.
    """
    layers, heads, _, width = keys.shape
    shape = KVShape(num_layers=layers, num_kv_heads=heads, head_dim=width, dtype=keys.dtype, device=_HOST)
    tensors = {"keys": keys, "values": values}
    if recipe.codec.lossy:
        how = QUANTIZERS[recipe.codec]
        for name, rows, size in (
            ("keys", keys, how.key_group),
            ("values", values.transpose(1, 2).flatten(2), how.value_group),
        ):
            codes, low, high = _quantize(rows, size * keys.dtype.itemsize, how.steps)
            packed = codes if how.per_byte == 1 else _pack_nibbles(codes)
            tensors |= {name: packed, f"{name}.low": low, f"{name}.high": high}
    at_rest = {
        name: tensor.detach().to(_HOST, copy=not recipe.codec.lossy).contiguous() for name, tensor in tensors.items()
    }
    return StoredEncoding(recipe=recipe, shape=shape, tensors=at_rest)


def from_stored(stored: StoredEncoding, device: torch.device = _HOST) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values `[L, Hkv, T, D]`; not copied where they rest as computed, on the device asked for."""
    tensors = {name: tensor.to(device) for name, tensor in stored.tensors.items()}
    if not stored.recipe.codec.lossy:
        return tensors["keys"], tensors["values"]
    how = QUANTIZERS[stored.recipe.codec]
    shape, itemsize = stored.shape, stored.shape.dtype.itemsize
    unpacked = []
    for name, width, size in (
        ("keys", shape.head_dim, how.key_group),
        ("values", shape.num_kv_heads * shape.head_dim, how.value_group),
    ):
        codes = tensors[name] if how.per_byte == 1 else _unpack_nibbles(tensors[name], width)
        bounds = tensors[f"{name}.low"], tensors[f"{name}.high"]
        unpacked.append(_restore(codes, *bounds, size * itemsize, how.steps))
    keys, values = unpacked
    return keys, values.reshape(*values.shape[:2], shape.num_kv_heads, shape.head_dim).transpose(1, 2)


def as_kept(recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return KV as the recipe's codec leaves it: what `from_stored` gives for what `to_stored` makes of it."""
    if not recipe.codec.lossy:
        return keys, values
    return from_stored(to_stored(recipe, keys, values), keys.device)


def _cuts(length: int, size: int) -> list[int]:
    """Return the lengths of groups of `size`; the last one takes the rest, so that none is shorter unless alone."""
    count = max(1, length // size)
    return [size] * (count - 1) + [length - size * (count - 1)]


def _split(rows: torch.Tensor, sizes: int | list[int]) -> tuple[torch.Tensor, ...]:
    parts: tuple[torch.Tensor, ...] = torch.split(rows, sizes, dim=2)
    return parts


def _quantize(rows: torch.Tensor, size: int, steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes of the shape of `rows`, and the lowest and highest number of each group along axis 2."""
    groups = [_quantize_group(group, steps) for group in _split(rows, _cuts(rows.shape[2], size))]
    codes, low, high = (torch.cat(parts, dim=2) for parts in zip(*groups, strict=True))
    return codes, low, high


def _quantize_group(group: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low, high = group.amin(2, keepdim=True), group.amax(2, keepdim=True)  # NaN where there is one
    spoiled = ~(low.isfinite() & high.isfinite())
    low, high = low.masked_fill(spoiled, torch.nan), high.masked_fill(spoiled, torch.nan)
    wide, bottom, top = (_widened(each) / 2 for each in (group, low, high))  # halves: a difference cannot overflow
    codes = ((wide - bottom) / (top - bottom) * steps).nan_to_num(0).round().clamp(0, steps)
    return codes.to(torch.uint8), low, high


def _restore(codes: torch.Tensor, low: torch.Tensor, high: torch.Tensor, size: int, steps: int) -> torch.Tensor:
    groups = _split(codes, _cuts(codes.shape[2], size))
    bounds = zip(_split(low, 1), _split(high, 1), strict=True)
    return torch.cat([_level(group, *ends, steps) for group, ends in zip(groups, bounds, strict=True)], dim=2)


def _level(codes: torch.Tensor, low: torch.Tensor, high: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the numbers that codes stand for, rounded to the dtype of the bounds; the first and last are those."""
    bottom, top = _widened(low), _widened(high)
    weight = codes.to(bottom.dtype) / steps
    return (bottom * (1 - weight) + top * weight).to(low.dtype)


def _widened(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers in a dtype in which the computation with them loses nothing that counts."""
    return numbers.to(torch.float32 if numbers.dtype.itemsize <= 2 else torch.float64)


def _pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    even = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
    return even[..., 0::2] | (even[..., 1::2] << 4)


def _unpack_nibbles(packed: torch.Tensor, width: int) -> torch.Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)[..., :width]
