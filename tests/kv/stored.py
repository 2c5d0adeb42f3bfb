"""Small stored encodings for tests, their bytes, and how to compare them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import torch

from promptcache.kv import BlobTier, Codec, KVShape, Recipe, StoredEncoding
from promptcache.kv.codec import tensor_specs
from promptcache.kv.files.format import pack, unpack

HOST = torch.device("cpu")


def shape(
    dtype: torch.dtype = torch.float32, *, num_layers: int = 2, num_kv_heads: int = 1, head_dim: int = 8
) -> KVShape:
    """Return the KV shape of a small model."""
    return KVShape(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, device=HOST)


def recipe(name: str, num_tokens: int = 3, codec: Codec = Codec.FULL, first: int = 0) -> Recipe:
    """Return a recipe that is unique to its name, number of tokens, codec and first position."""
    return Recipe(
        fingerprint=name,
        digest=hashlib.sha256(f"{codec} {num_tokens} {first}".encode()).hexdigest(),
        num_tokens=num_tokens,
        first_position=first,
        last_position=first + num_tokens - 1,
        codec=codec,
    )


def random_stored(made_of: Recipe, kv: KVShape, facts: dict[str, str] | None = None, seed: int = 0) -> StoredEncoding:
    """Return an encoding whose tensors hold random bits, signalling NaNs included."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randint(0, 256, (spec.dtype.itemsize * torch.Size(spec.shape).numel(),), generator=generator)
        .to(torch.uint8)
        .view(spec.dtype)
        .view(spec.shape)
        for name, spec in tensor_specs(made_of.codec, kv, made_of.num_tokens).items()
    }
    return StoredEncoding(recipe=made_of, shape=kv, tensors=tensors, facts=facts or {})


def small(name: str = "small", num_tokens: int = 3, seed: int = 0) -> StoredEncoding:
    """Return a very small encoding."""
    return random_stored(recipe(name, num_tokens), shape(), seed=seed)


def bits(tensor: torch.Tensor) -> bytes:
    """Return the memory of a tensor."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def content(stored: StoredEncoding) -> tuple[object, ...]:
    """Return the content of a stored encoding. Two encodings are the same bit for bit if this is equal."""
    tensors = {name: (each.dtype, tuple(each.shape), bits(each)) for name, each in stored.tensors.items()}
    return stored.recipe, stored.recipe.key, stored.shape, tensors, dict(stored.facts)


def file_bytes(stored: StoredEncoding) -> int:
    """Return the size of the file of an encoding."""
    return len(pack(stored))


def write(tier: BlobTier, stored: StoredEncoding) -> bool:
    """Write an encoding to a tier, as a store does; return whether the tier has it now."""
    tier.write(stored.recipe.key, pack(stored))
    return stored.recipe.key in set(tier.keys())


def read(tier: BlobTier, key: str) -> StoredEncoding | None:
    """Read an encoding from a tier, as a store does."""
    data = tier.read(key)
    return None if data is None else unpack(data, f"{tier}/{key}", key)


def files_of(folder: Path) -> list[str]:
    """Return the names of the encodings in the folder of a tier."""
    return sorted(path.name for path in (folder / "encodings").iterdir())


@dataclass
class DictTier(BlobTier):
    """The tier of a caller: four methods over a dict. It has no hash."""

    files: dict[str, bytes] = field(default_factory=dict)

    def read(self, key: str) -> bytes | None:
        return self.files.get(key)

    def write(self, key: str, data: bytes) -> None:
        self.files[key] = data

    def delete(self, key: str) -> None:
        self.files.pop(key, None)

    def keys(self) -> list[str]:
        return [*self.files, "a name that is no key"]
