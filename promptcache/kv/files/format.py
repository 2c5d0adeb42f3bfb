"""The file of an encoding: a safetensors file with a checksum in its metadata. `docs/store-format.md` describes it.

A reader trusts nothing in a file. The tensors have to be those that the codec prescribes, and the metadata has to give
the key that names the file. Then the checksum of both is compared.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import Any, BinaryIO

import safetensors.torch
import torch

from promptcache.codecs import Codec
from promptcache.diagnostics import CorruptEncoding, TierUnavailable
from promptcache.kv.codec import StoredEncoding, TensorSpec, tensor_specs
from promptcache.kv.keys import FORMAT_VERSION, Recipe
from promptcache.kv.types import KVShape

PIECE_BYTES = 4 * 2**20
"""Size of the pieces of a tensor that are hashed separately, so that several cores can compute the checksum."""

_FACT = "fact:"
_HOST = torch.device("cpu")
_SHAPE = ("num_layers", "num_kv_heads", "head_dim")
_RECIPE: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("fingerprint", "digest"), str),
    **dict.fromkeys(("num_tokens", "first_position", "last_position"), int),
    "codec": Codec,
}
"""The fields of a recipe, and what reads each of them from text."""

_UNREADABLE = (
    safetensors.SafetensorError,
    RuntimeError,  # torch cannot map the file, because it is too large for the memory
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)


def pack(stored: StoredEncoding) -> bytes:
    """Return the file of an encoding."""
    return safetensors.torch.save(dict(stored.tensors), {**_metadata(stored), "sha256": _checksum(stored)})


def unpack(
    data: bytes | BinaryIO, source: str, key: str, shape: KVShape | None = None, *, verify: bool = True
) -> StoredEncoding:
    """Return the encoding in a file.

    Args:
        data: Content of the file, or the open file. An open file is mapped into memory and closed. Writes to its
            tensors never reach it.
        source: Name of the file for messages.
        key: Key of the encoding.
        shape: Required shape of the KV, on any device. None accepts every shape.
        verify: Whether to verify the checksum. If not, the tensors of an open file are not read.

    Raises:
        CorruptEncoding: The file does not match its key or its checksum, or its KV has another shape.
        TierUnavailable: The file system cannot map files.
    """
    try:
        metadata, tensors = _content(data)
        if (version := metadata["version"]) != str(FORMAT_VERSION):
            raise ValueError(f"it has format version {version}, this library reads version {FORMAT_VERSION}")
        recipe = Recipe(**{name: read(metadata[name]) for name, read in _RECIPE.items()})
        dtype = tensors["keys.low" if recipe.codec.lossy else "keys"].dtype
        own = KVShape(**{name: int(metadata[name]) for name in _SHAPE}, dtype=dtype, device=_HOST)
        specs, own_key, checksum = tensor_specs(recipe.codec, own, recipe.num_tokens), recipe.key, metadata["sha256"]
    except _UNREADABLE as error:
        raise CorruptEncoding(f"{source}: is no encoding: {error}") from error
    except OSError as error:
        raise TierUnavailable(f"{source}: cannot be mapped: {error}", str(error)) from error
    if own_key != key:
        raise CorruptEncoding(f"{source}: holds the encoding {own_key}, which is not its name")
    if {name: TensorSpec(each.dtype, tuple(each.shape)) for name, each in tensors.items()} != specs:
        raise CorruptEncoding(f"{source}: its tensors are not those of {_text(own)} with codec {recipe.codec}")
    if shape is not None and own != replace(shape, device=_HOST):
        raise CorruptEncoding(f"{source}: holds KV of {_text(own)}; this model's is {_text(shape)}")
    facts = {name.removeprefix(_FACT): text for name, text in metadata.items() if name.startswith(_FACT)}
    stored = StoredEncoding(recipe=recipe, shape=own, tensors=MappingProxyType(tensors), facts=facts)
    if verify and _checksum(stored) != checksum:
        raise CorruptEncoding(f"{source}: does not match its checksum")
    return stored


def _content(data: bytes | BinaryIO) -> tuple[Mapping[str, str], dict[str, torch.Tensor]]:
    """Return the metadata and the tensors of a safetensors file."""
    if isinstance(data, bytes | bytearray | memoryview):
        tensors = safetensors.torch.load(bytes(data))
        return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"], tensors
    # The library opens paths. This one is the open file, whatever its name stands for by now.
    with data, safetensors.safe_open(f"/dev/fd/{data.fileno()}", "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 # no dict


def _metadata(stored: StoredEncoding) -> dict[str, str]:
    """Return the metadata of a file without its checksum."""
    recipe, shape = stored.recipe, stored.shape
    return {
        "version": str(FORMAT_VERSION),
        **{name: str(getattr(shape, name)) for name in _SHAPE},
        **{name: str(getattr(recipe, name)) for name in _RECIPE},
        **{f"{_FACT}{name}": text for name, text in stored.facts.items()},
    }


def _checksum(stored: StoredEncoding) -> str:
    """Return the sha256 of the digests of the metadata and of the pieces of all tensors, sorted by name."""
    tensors = (stored.tensors[name].detach().flatten() for name in sorted(stored.tensors))
    contents = [each.view(torch.uint8).numpy().data for each in tensors]
    pieces = [content[at : at + PIECE_BYTES] for content in contents for at in range(0, len(content), PIECE_BYTES)]
    metadata = json.dumps(_metadata(stored), sort_keys=True, separators=(",", ":")).encode()
    if sum(map(len, pieces)) <= PIECE_BYTES:  # threads would cost more than they save
        digests = [*map(_digest, pieces)]
    else:
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:  # hashlib releases the GIL
            digests = [*pool.map(_digest, pieces)]
    return hashlib.sha256(b"".join((_digest(metadata), *digests))).hexdigest()


def _digest(piece: bytes | memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _text(shape: KVShape) -> str:
    sizes = [shape.num_layers, shape.num_kv_heads, shape.head_dim]
    return f"{str(shape.dtype).removeprefix('torch.')} {sizes}"
