"""Moves stored keys to other positions, if the model uses positions in rotary embeddings only.

RoPE rotates pairs of dimensions of a key by angles that its position gives (RoFormer, Su et al. 2021, arXiv
2104.09864). A key at position p is R(p) k, so R(p') R(p)^-1 moves it to p'. The angles come from the model's own
functions, because transformers rounds them to float32: at position 100,000 they are up to 4e-3 from the exact ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Protocol, TypeAlias

import torch
from transformers.cache_utils import Cache

from promptcache.diagnostics import UnsupportedModel
from promptcache.kv import KVShape
from promptcache.model.facts import MODEL_FAULTS, Facts

_NUM_PROBED = 8
_FIRST_TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.003}  # the only noise of the first layer is rounding
_FULL_FIRST_TOLERANCE = 1e-3
_TOLERANCE = {torch.bfloat16: 0.25, torch.float16: 0.05}
_FULL_TOLERANCE = 1e-2  # float32 and float64; matrix multiplications may be in TF32
_QUERY_SCALE = "llama_4_scaling_beta"  # of Ministral 3: less than half precision shows
_ANGLE_ERROR = 2.0**-24  # for each position of the shift: angles are rounded to float32

_CPU_CHUNK = 1 << 17  # numbers for each thread: two buffers of this size in float32 fit into its cache
_DEVICE_CHUNK = 1 << 24

Angles: TypeAlias = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Takes an empty tensor of the wanted dtype and device, and positions `[T]`. Returns cosines and sines, `[T, W]` or
`[T, W / 2]`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rotation:
    """The rotation that a layer applies to its keys.

    Attributes:
        angles: The model's own function for cosines and sines, both times its attention scaling (YaRN, longrope).
        own: The columns of its result that have one angle for each pair.
        width: Number of rotated dimensions W; the others, at the end, are not rotated.
        is_interleaved: Whether the dimensions 2i and 2i + 1 are a pair, instead of i and i + W / 2.
    """

    angles: Angles
    own: slice
    width: int
    is_interleaved: bool

    def at(self, position_ids: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines of the pairs at positions `[T]`: two tensors `[T, W / 2]` as `like`."""
        cos, sin = self.angles(like, position_ids)
        return cos[:, self.own], sin[:, self.own]

    def between(
        self, position_ids: torch.Tensor, targets: torch.Tensor, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines of R(p') R(p)^-1; the scaling, which the keys have already, is divided out."""
        cos, sin = self.at(position_ids, like)
        target_cos, target_sin = self.at(targets, like)
        scale = cos.square().addcmul_(sin, sin).reciprocal_()
        moved_cos = (target_cos * cos).addcmul_(target_sin, sin)
        moved_sin = (target_sin * cos).addcmul_(target_cos, sin, value=-1)
        return moved_cos.mul_(scale), moved_sin.mul_(scale)


class Relocation:
    """Moves keys of one model to other positions.

    Attributes:
        layers: The rotation of each layer; None for layers without positions.
    """

    def __init__(self, layers: Sequence[Rotation | None]) -> None:
        self.layers = tuple(layers)
        self._runs: list[tuple[Rotation | None, slice]] = []  # neighbours with one rotation
        for rotation, run in groupby(enumerate(self.layers), key=lambda item: item[1]):
            indices = [index for index, _ in run]
            self._runs.append((rotation, slice(indices[0], indices[-1] + 1)))

    @torch.no_grad()
    def move(
        self,
        keys: torch.Tensor,
        position_ids: torch.Tensor,
        targets: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return keys as the model would have computed them at other positions. Values need no move.

        The text that the keys attended to must move by the same distance: keys of a module move together. The result is
        computed in float32, or in float64 for float64, and rounded once.

        Args:
            keys: `[L, Hkv, T, D]` as the model computed them at `position_ids`; not changed.
            position_ids: `[T]`, in any order and with any gaps, below the context length.
            targets: `[T]`, the new positions, below the context length.
            out: Receives the result, as large as `keys` and of their dtype. It may be a view, but not of `keys`.
        """
        out = torch.empty_like(keys) if out is None else out
        like = torch.empty(0, device=keys.device, dtype=_computed_in(keys.dtype))
        position_ids, targets = position_ids.to(keys.device), targets.to(keys.device)
        angles: dict[Rotation, tuple[torch.Tensor, torch.Tensor]] = {}  # as arguments of `rotate`
        for rotation, layers in self._runs:
            if rotation is None:
                out[layers].copy_(keys[layers])
                continue
            if rotation not in angles:
                cos, sin = rotation.between(position_ids, targets, like)
                factor = torch.complex(cos, sin) if rotation.is_interleaved else torch.cat((cos, cos), dim=-1)
                angles[rotation] = factor, sin
            rotate(rotation, *angles[rotation], keys[layers], out[layers])
        return out


def rotate(rotation: Rotation, factor: torch.Tensor, sin: torch.Tensor, keys: torch.Tensor, out: torch.Tensor) -> None:
    """Write rotated `keys` to `out`, both `[L, Hkv, T, D]`, in chunks that stay in the processor's cache.

    Args:
        factor: Cosines `[T, W]`, or of interleaved pairs complex numbers `[T, W / 2]`.
        sin: `[T, W / 2]`, in the dtype in which keys are rotated.
    """
    width, half = rotation.width, rotation.width // 2
    out[..., width:] = keys[..., width:]
    keys, out = keys[..., :width], out[..., :width]
    chunks = _chunks(keys)
    is_exact = keys.dtype == sin.dtype
    size = 0 if is_exact else max((keys[chunk].numel() for chunk in chunks), default=0)
    buffers = sin.new_empty((2, size))
    for chunk in chunks:
        source = exact = keys[chunk]
        target = rotated = out[chunk]
        own_factor, own_sin = factor[chunk[2]], sin[chunk[2]]
        if not is_exact:
            exact, rotated = buffers[:, : source.numel()].view(2, *source.shape)
            exact.copy_(source)
        if rotation.is_interleaved:
            torch.mul(_as_complex(exact), own_factor, out=_as_complex(rotated))
        else:
            torch.mul(exact, own_factor, out=rotated)
            rotated[..., :half].addcmul_(exact[..., half:], own_sin, value=-1)
            rotated[..., half:].addcmul_(exact[..., :half], own_sin)
        if not is_exact:
            target.copy_(rotated)


def _as_complex(keys: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(keys.view(*keys.shape[:-1], -1, 2))


def _chunks(keys: torch.Tensor) -> list[tuple[slice, slice, slice]]:
    """Return indices of chunks of keys `[L, Hkv, T, W]`: some layers whole, or a part of the tokens of one layer."""
    num_layers, num_heads, num_tokens, width = keys.shape
    size = _CPU_CHUNK * torch.get_num_threads() if keys.device.type == "cpu" else _DEVICE_CHUNK
    tokens = min(max(1, size // (num_heads * width)), max(1, num_tokens))
    layers = max(1, size // (num_heads * width * tokens)) if tokens >= num_tokens else 1
    return [
        (slice(layer, layer + layers), slice(None), slice(start, start + tokens))
        for layer in range(0, num_layers, layers)
        for start in range(0, num_tokens, tokens)
    ]


def _computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


class ModelLayers(Protocol):
    """What of a `Model` shows how its keys depend on positions."""

    hf: Any
    shape: KVShape
    facts: Facts
    context_length: int
    num_known_tokens: int

    def encode(self, token_ids: torch.Tensor, position_ids: torch.Tensor, cache: Cache) -> None:
        """Run the layers over new tokens `[B, T]`; the cache grows by their KV."""

    @staticmethod
    def plain_cache(num_layers: int) -> Cache:
        """Return an empty cache of plain layers."""


def read_relocation(model: ModelLayers) -> Relocation:
    """Return the rotation of each layer's keys, found by encoding a short text at two places.

    A uniform shift changes only the rotation of the keys, even with sliding windows. So a layer's rotation is the one
    that moves its keys from the first place to the second. The second place is the end of the context, where slow
    frequencies and other effects of positions also show.

    On later layers, effects of positions are found from 1 % in float32, and from 25 % in bfloat16. On the first layer,
    they are found from 0.1 % and 2 %. The smaller ones of known types have a name in the configuration.

    Raises:
        UnsupportedModel: The values of the places differ, or no rotation explains the keys of a layer.
    """
    rope = getattr(model.hf.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    if rope.get(_QUERY_SCALE):
        raise UnsupportedModel(
            f"{model.facts.name} cannot move keys to other positions: it scales queries by their position "
            f"(rope_parameters: '{_QUERY_SCALE}')"
        )
    num_tokens = max(1, min(_NUM_PROBED, model.context_length // 2))
    shift = model.context_length - num_tokens
    dtype = model.shape.dtype
    first_tolerance = _FIRST_TOLERANCE.get(dtype, _FULL_FIRST_TOLERANCE)
    later_tolerance = _TOLERANCE.get(dtype, _FULL_TOLERANCE) + shift * _ANGLE_ERROR
    near = torch.arange(num_tokens, device=model.shape.device)
    keys, values = _encoded_twice(model, near, shift)
    rotations = _rotations(model, near, shift)
    layers: list[Rotation | None] = []
    for layer, (own_keys, own_values) in enumerate(zip(keys, values, strict=True)):
        tolerance = later_tolerance if layer else first_tolerance
        if (far := _distance(*own_values)) > tolerance:
            raise UnsupportedModel(
                f"{model.facts.name} cannot move keys to other positions: its values depend on positions, too (layer "
                f"{layer} differs by {far:.2g}), as with learned position embeddings"
            )
        moves = {rotation: Relocation([rotation]) for rotation in (None, *rotations)}
        distances = {
            rotation: _distance(move.move(own_keys[:1], near, near + shift), own_keys[1:])
            for rotation, move in moves.items()
        }
        nearest = min(distances, key=distances.__getitem__)
        if distances[nearest] > tolerance:
            raise UnsupportedModel(
                f"{model.facts.name} cannot move keys to other positions: no rotary embedding that was found in it "
                f"explains the keys of layer {layer} (the nearest one differs by {distances[nearest]:.2g})"
            )
        layers.append(nearest)
    return Relocation(layers)


@torch.no_grad()
def _encoded_twice(model: ModelLayers, near: torch.Tensor, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values `[L, 2, Hkv, T, D]` of tokens evenly spaced in the vocabulary, at `near` and shifted."""
    size = 2 * len(near)
    token_ids = model.num_known_tokens * (2 * near + 1) // size
    cache: Any = model.plain_cache(model.shape.num_layers)
    model.encode(token_ids.expand(2, -1), torch.stack((near, near + shift)), cache)
    kept = _computed_in(model.shape.dtype)
    keys, values = (
        torch.stack([getattr(layer, name) for layer in cache.layers]).to(kept) for name in ("keys", "values")
    )
    return keys, values


def _distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative distance of `[..., Hkv, T, D]`, as the mean over D: a few dimensions may be much larger."""
    axes = tuple(range(expected.ndim - 1))
    error, norm = ((each.square()).sum(axes) for each in (actual - expected, expected))
    distance = float((error / norm.clamp(min=torch.finfo(norm.dtype).tiny)).mean().sqrt())
    return distance if distance == distance else float("inf")  # NaN counts as infinitely far


def _rotations(model: ModelLayers, near: torch.Tensor, shift: int) -> list[Rotation]:
    """Return the different rotations that the model's rotary embeddings allow, for keys of D dimensions."""
    like = torch.empty(0, device=model.shape.device, dtype=_computed_in(model.shape.dtype))
    position_ids = torch.cat((near, near + shift))
    known: list[tuple[torch.Tensor, torch.Tensor]] = []
    found = []
    for angles in _all_angles(model.hf):
        try:
            cos, sin = angles(like, position_ids)
            num_columns = cos.shape[1]
            half, own = num_columns // 2, slice(0, num_columns)  # one column for each pair
            if torch.equal(cos[:, :half], cos[:, half:]):  # transformers repeats all columns, each one, or none
                own = slice(0, half)
            elif torch.equal(cos[:, ::2], cos[:, 1::2]):
                own = slice(0, num_columns, 2)
        except MODEL_FAULTS:  # another use of the name, as in vision models
            continue
        cos, sin = cos[:, own], sin[:, own]
        width = 2 * cos.shape[1]
        if width > model.shape.head_dim or any(all(map(torch.equal, (cos, sin), each)) for each in known):
            continue
        known.append((cos, sin))
        found += [Rotation(angles=angles, own=own, width=width, is_interleaved=each) for each in (False, True)]
    return found


def _all_angles(hf: torch.nn.Module) -> Iterator[Angles]:
    """Yield the functions of angles that a model has: its rotary modules for each type of layer."""
    for module in hf.modules():
        if hasattr(module, "rope_type"):
            takes_type = "layer_type" in inspect.signature(module.forward).parameters
            types = module.rope_type if takes_type and isinstance(module.rope_type, dict) else [None]
            for each in types:
                yield partial(_angles, module, {} if each is None else {"layer_type": each})


def _angles(
    module: Any, chosen: Mapping[str, str], like: torch.Tensor, position_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = module(like, position_ids[None], **chosen)
    return cos[0], sin[0]
