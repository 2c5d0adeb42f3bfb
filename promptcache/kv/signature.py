"""The signature of a model: KV of a fixed text, which a store keeps beside the encodings.

A fingerprint covers what can be read of a model. What cannot be read, such as a replaced function of a library, shows
in the KV that the model computes. Models whose signatures do not agree have different keys, so they share no KV.

Rounding differs between processors and kernels. Two signatures agree if, in each layer, the distance of most tokens is
within a tolerance. So a few tokens may differ, for example those that a mixture of experts routes differently after
rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from promptcache.kv.codec import StoredEncoding, to_stored
from promptcache.kv.keys import KEY, Recipe

TOLERANCE: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 0.015, torch.bfloat16: 0.1}
)
"""Maximum distance of keys and of values of one token, |a-b| / |b| in the Euclidean norm.

Between instruction sets, packed and plain weights, eager and fused attention, and against exact arithmetic, the largest
distances over 24 layers were 3e-6 in float32, and about three rounding steps (eps) in the others: 0.0033 in float16
and 0.026 in bfloat16. In float64, transformers rounds norms to float32, which costs 6e-8.
"""

_PREFIX = "signature of "


def signature(fingerprint: str, positions: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> StoredEncoding:
    """Return the signature of a model.

    Args:
        fingerprint: Covers what can be read of the model.
        positions: Of the tokens of the fixed text, ascending.
        keys: KV of the fixed text as the model computes it now, `[L, Hkv, T, D]`.
        values: Same shape as `keys`.
    """
    digest = hashlib.sha256()
    for states in (keys, values):
        digest.update(states.cpu().contiguous().view(torch.uint8).numpy().data)
    recipe = Recipe(
        fingerprint=f"{_PREFIX}{fingerprint}",
        digest=digest.hexdigest(),
        num_tokens=len(positions),
        first_position=positions[0],
        last_position=positions[-1],
    )
    return to_stored(recipe, keys, values)


def is_signature(stored: StoredEncoding) -> bool:
    """Whether something stored is the signature of a model."""
    return stored.recipe.fingerprint.startswith(_PREFIX)


def signed(fingerprint: str, key: str) -> str:
    """Return the fingerprint of the models whose signature agrees with the recorded one of this key."""
    return f"{fingerprint}/{key}"


def signature_in(fingerprint: str) -> tuple[str, str] | None:
    """Split the result of `signed` into the fingerprint of the signature and its key; None for another fingerprint."""
    base, _, key = fingerprint.rpartition("/")
    return (f"{_PREFIX}{base}", key) if KEY.takes(key) else None


def agree(known: StoredEncoding, own: StoredEncoding) -> bool:
    """Whether two signatures are those of one model."""
    if known.shape != own.shape or replace(known.recipe, digest=own.recipe.digest) != own.recipe:
        return False
    return all(_is_near(known.tensors[name], own.tensors[name]) for name in ("keys", "values"))


def _is_near(known: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether KV `[L, Hkv, T, D]` is the same within rounding, in most tokens of each layer."""
    tolerance = TOLERANCE.get(own.dtype, TOLERANCE[torch.float32])
    distance, size = (each.norm(dim=(1, 3)) for each in (known.double() - own.double(), own.double()))  # [L, T]
    return bool(((distance <= tolerance * size).double().mean(1) > 0.5).all())
