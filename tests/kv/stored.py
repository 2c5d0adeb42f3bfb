"""Encodings at rest for tests: small ones of any dtype, their bytes, and what it means that two are the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from promptcache.kv import Codec, KVShape, Recipe, StoredEncoding
from promptcache.kv.codec import forms
from promptcache.kv.files.format import check_payload, pack, read_header, unpack

HOST = torch.device("cpu")


def shape(
    dtype: torch.dtype = torch.float32, *, num_layers: int = 2, num_kv_heads: int = 1, head_dim: int = 8
) -> KVShape:
    """The shape of a small model's KV."""
    return KVShape(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, device=HOST)


def recipe(name: str, num_tokens: int = 3, codec: Codec = Codec.FULL, first: int = 0) -> Recipe:
    """A recipe that differs from that of every other name, number of tokens and codec; it starts at position `first`."""
    return Recipe(
        fingerprint=name,
        digest=hashlib.sha256(f"{codec} {num_tokens} {first}".encode()).hexdigest(),
        num_tokens=num_tokens,
        first_position=first,
        last_position=first + num_tokens - 1,
        codec=codec,
    )


def random_stored(made_of: Recipe, kv: KVShape, facts: dict[str, str] | None = None, seed: int = 0) -> StoredEncoding:
    """An encoding whose tensors hold random bits, signalling NaNs among them."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randint(0, 256, (form.dtype.itemsize * torch.Size(form.shape).numel(),), generator=generator)
        .to(torch.uint8)
        .view(form.dtype)
        .view(form.shape)
        for name, form in forms(made_of.codec, kv, made_of.num_tokens).items()
    }
    return StoredEncoding(recipe=made_of, shape=kv, tensors=tensors, facts=facts or {})


def small(name: str = "small", num_tokens: int = 3, seed: int = 0) -> StoredEncoding:
    """One of the smallest encodings there are."""
    return random_stored(recipe(name, num_tokens), shape(), seed=seed)


def bits(tensor: torch.Tensor) -> bytes:
    """The memory of a tensor."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def content(stored: StoredEncoding) -> tuple[object, ...]:
    """Everything that an encoding at rest is: two are the same when this is equal, to the last bit."""
    tensors = {name: (each.dtype, tuple(each.shape), bits(each)) for name, each in stored.tensors.items()}
    return stored.recipe, stored.recipe.key, stored.shape, tensors, dict(stored.facts)


def whole_file(stored: StoredEncoding) -> bytes:
    """The bytes of an encoding's file."""
    head, payload = pack(stored)
    return head + b"".join(payload)


def file_bytes(stored: StoredEncoding) -> int:
    """How many bytes its file has."""
    return len(whole_file(stored))


def read_whole(data: bytes, key: str | None = None) -> StoredEncoding:
    """What a reader makes of a file's bytes."""
    header, start = read_header(data, len(data), "the file", key)
    payload = memoryview(bytearray(data[start:]))
    check_payload(header, payload, "the file")
    return unpack(header, payload)


def files_of(folder: Path) -> list[str]:
    """The names of the encodings in a tier's folder."""
    return sorted(path.name for path in (folder / "encodings").iterdir())
