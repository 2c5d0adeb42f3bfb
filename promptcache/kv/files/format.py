"""The file format of an encoding: a header and a payload. `docs/store-format.md` specifies it.

The file is a safetensors file. A reader trusts nothing in it: it writes the header again from what it parsed, and
accepts it only if the bytes are the same. So no tensor is created unless its dtype and shape are those that the codec
prescribes, and nothing is allocated for the sizes that a header claims.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from promptcache.diagnostics import CorruptEncoding, StoreError
from promptcache.kv.codec import StoredEncoding, TensorSpec, tensor_specs
from promptcache.kv.keys import FORMAT_VERSION, Codec, Recipe
from promptcache.kv.types import KVShape

MAX_HEADER_BYTES = 16 * 2**20

PIECE_BYTES = 4 * 2**20
"""Size of the pieces of a payload that are hashed separately, so that several cores can compute its checksum."""

_ALIGNMENT = 64
_NO_CHECKSUM = "0" * 64
_FACT = "fact:"
_HOST = torch.device("cpu")

_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I8": torch.int8,
        "U8": torch.uint8,
    }
)
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Everything in the file of an encoding except its tensors.

    Attributes:
        recipe: Identity of the encoding.
        shape: Shape of the decoded KV.
        facts: Further facts as text.
        sha256: Checksum of the whole file, as `_checksum` returns it.
    """

    recipe: Recipe
    shape: KVShape
    facts: Mapping[str, str]
    sha256: str

    @property
    def tensor_specs(self) -> Mapping[str, TensorSpec]:
        """Specs of the tensors by name, in file order. The widest dtypes come first, which aligns all tensors."""
        unsorted = tensor_specs(self.recipe.codec, self.shape, self.recipe.num_tokens)
        return dict(sorted(unsorted.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(spec.nbytes for spec in self.tensor_specs.values())

    def to_bytes(self) -> bytes:
        """Return the start of the file: the length of the header, and the header."""
        recipe, shape = self.recipe, self.shape
        metadata = {
            "sha256": self.sha256,
            "format": "promptcache encoding",
            "version": str(FORMAT_VERSION),
            "codec": str(recipe.codec),
            "dtype": _DTYPE_NAMES[shape.dtype],
            "num_layers": str(shape.num_layers),
            "num_kv_heads": str(shape.num_kv_heads),
            "head_dim": str(shape.head_dim),
            "num_tokens": str(recipe.num_tokens),
            "first_position": str(recipe.first_position),
            "last_position": str(recipe.last_position),
            "fingerprint": recipe.fingerprint,
            "digest": recipe.digest,
            **{f"{_FACT}{name}": self.facts[name] for name in sorted(self.facts)},
        }
        tree: dict[str, object] = {"__metadata__": metadata}
        stop = 0
        for name, spec in self.tensor_specs.items():
            start, stop = stop, stop + spec.nbytes
            tree[name] = {"dtype": _DTYPE_NAMES[spec.dtype], "shape": spec.shape, "data_offsets": (start, stop)}
        text = json.dumps(tree, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def pack(stored: StoredEncoding) -> bytes:
    """Return the file of an encoding.

    Raises:
        StoreError: The tensors are not those that the codec prescribes, or the encoding has no tokens.
    """
    key = stored.recipe.key
    if stored.recipe.num_tokens < 1:
        raise StoreError(f"cannot store encoding {key}: it has no tokens")
    header = Header(recipe=stored.recipe, shape=stored.shape, facts=stored.facts, sha256=_NO_CHECKSUM)
    expected = header.tensor_specs
    given = {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in stored.tensors.items()}
    if given != expected:
        raise StoreError(f"cannot store encoding {key}: codec {stored.recipe.codec} needs {expected}, not {given}")
    payload = [_bytes_of(stored.tensors[name]) for name in expected]
    return b"".join((replace(header, sha256=_checksum(header, payload)).to_bytes(), *payload))


def unpack(data: bytes | memoryview, source: str, key: str, shape: KVShape | None = None) -> StoredEncoding:
    """Return the encoding in a file, after its checksum was verified. Its tensors are views of `data` if possible.

    Args:
        data: The file.
        source: Name of the file for messages.
        key: Key of the encoding.
        shape: Required shape of the KV, on any device. None accepts every shape.

    Raises:
        CorruptEncoding: The file does not match its key or its checksum, or its KV has another shape.
    """
    header, start = read_header(data, len(data), source, key)
    if shape is not None and header.shape != replace(shape, device=_HOST):
        raise CorruptEncoding(f"{source}: holds KV of {_text(header.shape)}; this model's is {_text(shape)}")
    whole = memoryview(data)
    if whole.readonly:
        whole = memoryview(bytearray(data))  # torch needs bytes that may be written
    tensors, parts = {}, []
    for name, spec in header.tensor_specs.items():
        parts.append(whole[start : start + spec.nbytes])
        tensors[name] = torch.frombuffer(parts[-1], dtype=spec.dtype).view(spec.shape)
        start += spec.nbytes
    if _checksum(header, parts) != header.sha256:
        raise CorruptEncoding(f"{source}: does not match its checksum")
    return StoredEncoding(
        recipe=header.recipe, shape=header.shape, tensors=MappingProxyType(tensors), facts=header.facts
    )


def read_header(head: bytes | memoryview, file_bytes: int, source: str, key: str) -> tuple[Header, int]:
    """Return the header of a file and the offset of its payload. The checksum of the file is not verified.

    Args:
        head: Start of the file, at least as long as `head_bytes` returns.
        file_bytes: Size of the file.
        source: Name of the file for messages.
        key: Key of the encoding.

    Raises:
        CorruptEncoding: The file is not an encoding, or has another version, key or size.
    """
    start = 8 + int.from_bytes(head[:8], "little")
    if start > min(8 + MAX_HEADER_BYTES, len(head)):
        raise CorruptEncoding(f"{source}: is truncated, or no encoding: its header ends at {start}, it at {file_bytes}")
    raw = bytes(head[:start])
    try:
        header = _header_of(json.loads(raw[8:])["__metadata__"], 2 * file_bytes)  # no codec packs more into a byte
        is_as_written, own_key = header.to_bytes() == raw, header.recipe.key
    except (StoreError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptEncoding(f"{source}: its header cannot be read: {error}") from error
    if not is_as_written:
        raise CorruptEncoding(f"{source}: its header is not as this library writes it")
    if file_bytes != start + header.payload_bytes:
        raise CorruptEncoding(f"{source}: has {file_bytes} bytes; its header says {start + header.payload_bytes}")
    if own_key != key:
        raise CorruptEncoding(f"{source}: holds the encoding {own_key}, which is not its name")
    return header, start


def head_bytes(first: bytes) -> int:
    """Return how many bytes `read_header` needs of a file, from its first 8 bytes."""
    return 8 + min(int.from_bytes(first[:8], "little"), MAX_HEADER_BYTES)


def _checksum(header: Header, payload: Sequence[memoryview]) -> str:
    """Return the sha256 of the digests of the header, without its checksum, and of the pieces of all tensors."""
    pieces = [part[at : at + PIECE_BYTES] for part in payload for at in range(0, len(part), PIECE_BYTES)]
    head = _digest(replace(header, sha256=_NO_CHECKSUM).to_bytes())
    return hashlib.sha256(b"".join((head, *_digests(pieces)))).hexdigest()


def _digests(pieces: Sequence[memoryview]) -> Iterator[bytes]:
    workers = min(len(pieces), os.cpu_count() or 1, 8)
    if workers == 1 or sum(map(len, pieces)) <= PIECE_BYTES:  # threads would cost more than they save
        yield from map(_digest, pieces)
        return
    with ThreadPoolExecutor(workers) as pool:  # hashlib releases the GIL
        yield from pool.map(_digest, pieces)


def _digest(piece: bytes | memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().flatten().view(torch.uint8).numpy().data


def _text(shape: KVShape) -> str:
    sizes = [shape.num_layers, shape.num_kv_heads, shape.head_dim]
    return f"{str(shape.dtype).removeprefix('torch.')} {sizes}"


def _header_of(fields: Mapping[str, str], max_numbers: int) -> Header:
    if not isinstance(fields, dict) or not all(isinstance(text, str) for text in fields.values()):
        raise TypeError("its metadata are not texts")
    if fields["version"] != str(FORMAT_VERSION):
        raise ValueError(f"it has format version {fields['version']}, this library reads version {FORMAT_VERSION}")
    sizes = {name: int(fields[name]) for name in ("num_layers", "num_kv_heads", "head_dim")}
    num_tokens = int(fields["num_tokens"])
    if min(num_tokens, *sizes.values()) < 1:
        raise ValueError("a size is below 1")
    if num_tokens * math.prod(sizes.values()) > max_numbers:
        raise ValueError("its sizes exceed the file")
    first, last = int(fields["first_position"]), int(fields["last_position"])
    if not (0 <= first <= last - num_tokens + 1 and last < 2**63):
        raise ValueError("its positions are out of range")
    recipe = Recipe(
        fingerprint=fields["fingerprint"],
        digest=fields["digest"],
        num_tokens=num_tokens,
        first_position=first,
        last_position=last,
        codec=Codec(fields["codec"]),
    )
    return Header(
        recipe=recipe,
        shape=KVShape(**sizes, dtype=_DTYPES[fields["dtype"]], device=_HOST),
        facts={name.removeprefix(_FACT): text for name, text in fields.items() if name.startswith(_FACT)},
        sha256=fields["sha256"],
    )
