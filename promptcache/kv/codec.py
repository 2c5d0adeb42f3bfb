"""Encoding of KV for storage: unchanged, or quantized to one byte or half a byte a number.

Quantization works on groups of neighbouring numbers. The lowest and the highest number of a group are stored as they
are, and every other number becomes the nearest of evenly spaced levels between them. Keys are grouped along the tokens
of one channel, because a channel keeps its magnitude from token to token. Values are grouped along the channels of one
token (after KIVI, Liu et al., ICML 2024). `tests/kv/test_codec.py` checks these laws:

- No number moves by more than half a level and its rounding to the dtype.
- Quantizing again changes nothing.
- NaN and infinity become NaN, never a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from promptcache.codecs import Codec
from promptcache.diagnostics import StoreError, one_of
from promptcache.kv.keys import Recipe
from promptcache.kv.types import KVShape

_HOST = torch.device("cpu")
_CODEC = one_of(Codec)


class TensorSpec(NamedTuple):
    """Dtype and shape of one tensor of a stored encoding."""

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
        recipe: Identity of the encoding. Its key is the name in the tier; its codec determines `tensors`.
        shape: Shape of the decoded KV. The device is the host.
        tensors: Contiguous tensors on the host, by name. Tensors that a tier returns may be memory-mapped. They stay
            valid after the encoding is deleted, and must not be changed.
        facts: Further facts as text, such as the module that it was first computed for.
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
    """Parameters of a lossy codec.

    Attributes:
        steps: Number of levels in a group, minus one.
        per_byte: Numbers in a byte.
        key_group: Tokens of a channel that share their bounds, for each byte of the dtype. A remainder joins the last
            group.
        value_group: Channels of a token that share their bounds, for each byte of the dtype.
    """

    steps: int
    per_byte: int
    key_group: int
    value_group: int


QUANTIZERS: Mapping[Codec, Quantizer] = {
    Codec.INT8: Quantizer(steps=255, per_byte=1, key_group=128, value_group=32),
    Codec.INT4: Quantizer(steps=15, per_byte=2, key_group=32, value_group=32),
}
"""In any dtype, bounds add 1/64 (keys) and 1/16 (values) to the size of int8, and 1/8 to that of int4."""


def codec_named(name: str) -> Codec:
    """Return the codec with this name.

    Raises:
        StoreError: There is no such codec.
    """
    _CODEC.check("keep", name, StoreError)
    return Codec(name)


def tensor_specs(codec: Codec, shape: KVShape, num_tokens: int) -> Mapping[str, TensorSpec]:
    """Return the specs of the tensors that store an encoding, by name."""
    layers, heads, width = shape.num_layers, shape.num_kv_heads, shape.head_dim
    if codec is Codec.FULL:
        whole = TensorSpec(shape.dtype, (layers, heads, num_tokens, width))
        return {"keys": whole, "values": whole}
    how = QUANTIZERS[codec]
    key_groups = _num_groups(num_tokens, how.key_group * shape.dtype.itemsize)
    value_groups = _num_groups(heads * width, how.value_group * shape.dtype.itemsize)
    key_bounds = TensorSpec(shape.dtype, (layers, heads, key_groups, width))
    value_bounds = TensorSpec(shape.dtype, (layers, num_tokens, value_groups))
    return {
        "keys": TensorSpec(torch.uint8, (layers, heads, num_tokens, math.ceil(width / how.per_byte))),
        "keys.low": key_bounds,
        "keys.high": key_bounds,
        "values": TensorSpec(torch.uint8, (layers, num_tokens, math.ceil(heads * width / how.per_byte))),
        "values.low": value_bounds,
        "values.high": value_bounds,
    }


def stored_bytes(codec: Codec, shape: KVShape, num_tokens: int) -> int:
    """Return the bytes of a stored encoding, without the header of its file."""
    return sum(spec.nbytes for spec in tensor_specs(codec, shape, num_tokens).values())


def to_stored(recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> StoredEncoding:
    """Return KV in the form that its codec stores. The arguments are copied, not changed.

    Args:
        recipe: Identity of the encoding, with its codec.
        keys: `[L, Hkv, T, D]`, on any device.
        values: Same shape as `keys`.
    """
    layers, heads, _, width = keys.shape
    shape = KVShape(num_layers=layers, num_kv_heads=heads, head_dim=width, dtype=keys.dtype, device=_HOST)
    tensors = {"keys": keys, "values": values}
    if recipe.codec.lossy:
        how = QUANTIZERS[recipe.codec]
        for name, states, size in (
            ("keys", keys, how.key_group),
            ("values", values.transpose(1, 2).flatten(2), how.value_group),
        ):
            codes, low, high = _quantize(states, size * keys.dtype.itemsize, how.steps)
            if how.per_byte == 2:
                even = torch.nn.functional.pad(codes, (0, codes.shape[-1] % 2))
                codes = even[..., 0::2] | (even[..., 1::2] << 4)
            tensors |= {name: codes, f"{name}.low": low, f"{name}.high": high}
    on_host = {
        name: tensor.detach().to(_HOST, copy=not recipe.codec.lossy).contiguous() for name, tensor in tensors.items()
    }
    return StoredEncoding(recipe=recipe, shape=shape, tensors=on_host)


def from_stored(stored: StoredEncoding, device: torch.device = _HOST) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values `[L, Hkv, T, D]` on a device. Nothing is copied if they are stored unchanged there."""
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
        codes = tensors[name]
        if how.per_byte == 2:
            codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)[..., :width]
        bounds = tensors[f"{name}.low"], tensors[f"{name}.high"]
        unpacked.append(_dequantize(codes, *bounds, size * itemsize, how.steps))
    keys, values = unpacked
    return keys, values.reshape(*values.shape[:2], shape.num_kv_heads, shape.head_dim).transpose(1, 2)


def apply_codec(recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return KV after a round trip through the codec of a recipe, `from_stored(to_stored(…))`."""
    if not recipe.codec.lossy:
        return keys, values
    return from_stored(to_stored(recipe, keys, values), keys.device)


def _num_groups(length: int, size: int) -> int:
    return max(1, length // size)


def _group_sizes(length: int, size: int) -> list[int]:
    """Return the lengths of groups of `size` numbers. The last group takes the remainder."""
    count = _num_groups(length, size)
    return [size] * (count - 1) + [length - size * (count - 1)]


def _quantize(states: torch.Tensor, size: int, steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes of the shape of `states`, and the lowest and highest number of each group along axis 2."""
    groups = []
    for group in states.split_with_sizes(_group_sizes(states.shape[2], size), dim=2):
        low, high = group.amin(2, keepdim=True), group.amax(2, keepdim=True)  # NaN if the group has one
        invalid = ~(low.isfinite() & high.isfinite())
        low, high = low.masked_fill(invalid, torch.nan), high.masked_fill(invalid, torch.nan)
        wide, bottom, top = (_widened(each) / 2 for each in (group, low, high))  # halves: a difference cannot overflow
        codes = ((wide - bottom) / (top - bottom) * steps).nan_to_num(0).round().clamp(0, steps)
        groups.append((codes.to(torch.uint8), low, high))
    codes, low, high = (torch.cat(parts, dim=2) for parts in zip(*groups, strict=True))
    return codes, low, high


def _dequantize(codes: torch.Tensor, low: torch.Tensor, high: torch.Tensor, size: int, steps: int) -> torch.Tensor:
    """Return the numbers of codes in the dtype of the bounds. Code 0 is exactly `low`, code `steps` exactly `high`."""
    levels = []
    for index, group in enumerate(codes.split_with_sizes(_group_sizes(codes.shape[2], size), dim=2)):
        bottom, top = (_widened(each[:, :, index : index + 1]) for each in (low, high))
        weight = group.to(bottom.dtype) / steps
        levels.append((bottom * (1 - weight) + top * weight).to(low.dtype))
    return torch.cat(levels, dim=2)


def _widened(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers in a dtype with enough precision for the quantizer: float32 or float64."""
    return numbers.to(torch.float32 if numbers.dtype.itemsize <= 2 else torch.float64)
