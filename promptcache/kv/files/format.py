"""The file of an encoding, header and payload. `docs/store-format.md` is its specification.

Comes in: an encoding at rest, or bytes. Goes out: bytes, or the encoding. No tensor is made before its form is the one
that the codec prescribes. This file knows no folders and no network.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType

import torch

from promptcache.diagnostics import CorruptEncoding, StoreError
from promptcache.kv.files.blob_tier import Form, StoredEncoding
from promptcache.kv.files.header import NO_DIGEST, Header
from promptcache.kv.types import KVShape

PIECE_BYTES = 4 * 2**20
"""The payload's checksum is made of those of pieces of this size, so that several cores can work on it."""


def pack(stored: StoredEncoding) -> tuple[bytes, tuple[memoryview, ...]]:
    """Return the bytes of a file: its beginning, and the tensors one after the other, not copied.

    Raises:
        StoreError: The tensors are not those that the recipe's codec prescribes, or hold no tokens.
    """
    if stored.recipe.num_tokens < 1:
        raise StoreError(f"cannot keep {stored.recipe.key}: it has no tokens")
    header = Header(recipe=stored.recipe, shape=stored.shape, facts=stored.facts, payload_sha256=NO_DIGEST)
    prescribed = header.forms
    given = {name: Form(tensor.dtype, tuple(tensor.shape)) for name, tensor in stored.tensors.items()}
    if given != prescribed:
        raise StoreError(f"cannot keep {stored.recipe.key}: it has {given}, codec {stored.recipe.codec} {prescribed}")
    payload = tuple(_bytes_of(stored.tensors[name]) for name in prescribed)
    header = Header(
        recipe=stored.recipe,
        shape=stored.shape,
        facts=stored.facts,
        payload_sha256=payload_digest(payload),
    )
    return header.to_bytes(), payload


def unpack(header: Header, payload: memoryview) -> StoredEncoding:
    """Return an encoding whose tensors are views of `payload`: writable memory of the size that the header says."""
    parts = _parts(header.forms, payload)
    tensors = {
        name: torch.frombuffer(part, dtype=form.dtype).view(form.shape)
        for (name, form), part in zip(header.forms.items(), parts, strict=True)
    }
    return StoredEncoding(
        recipe=header.recipe, shape=header.shape, tensors=MappingProxyType(tensors), facts=header.facts
    )


def check_payload(header: Header, payload: memoryview, source: str) -> None:
    """Read the whole payload.

    Raises:
        CorruptEncoding: It does not match its checksum.
    """
    if payload_digest(_parts(header.forms, payload)) != header.payload_sha256:
        raise CorruptEncoding(f"{source}: its payload does not match its checksum")


def check_shape(header: Header, shape: KVShape, source: str) -> None:
    """Compare the shape of the KV that a file holds with that of a model.

    Raises:
        CorruptEncoding: They differ. Two files with one key are of one model, so this one cannot be right.
    """
    if header.shape != replace(shape, device=header.shape.device):
        raise CorruptEncoding(f"{source}: holds KV of {shape_text(header.shape)}; this model's is {shape_text(shape)}")


def shape_text(shape: KVShape) -> str:
    """Return a shape in words: dtype, layers, KV heads and numbers in a head."""
    sizes = [shape.num_layers, shape.num_kv_heads, shape.head_dim]
    return f"{str(shape.dtype).removeprefix('torch.')} {sizes}"


def payload_digest(parts: Sequence[memoryview]) -> str:
    """Return the checksum of a payload: the sha256 of the sha256 digests of the pieces of each of its tensors."""
    pieces = [part[at : at + PIECE_BYTES] for part in parts for at in range(0, len(part), PIECE_BYTES)]
    workers = min(len(pieces), os.cpu_count() or 1, 8)
    if len(parts) == len(pieces) or workers == 1:  # small: threads would cost more than they save
        return _joined(map(_digest, pieces))
    with ThreadPoolExecutor(workers) as pool:  # hashlib lets go of the interpreter's lock
        return _joined(pool.map(_digest, pieces))


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _joined(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _parts(all_forms: Mapping[str, Form], payload: memoryview) -> list[memoryview]:
    parts = []
    for form in all_forms.values():
        parts.append(payload[: form.nbytes])
        payload = payload[form.nbytes :]
    return parts


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().flatten().view(torch.uint8).numpy().data
