"""The file format of an encoding: a header and a payload. `docs/store-format.md` specifies it.

A reader trusts nothing in a header. It writes the header again from what it parsed, and accepts it only if the bytes
are the same. So no tensor is created unless its dtype and shape are those that the codec prescribes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
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
_DIGITS = 64
_NO_DIGEST = "0" * _DIGITS
_START = b'{"__metadata__":{"header_sha256":"'
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
        payload_sha256: Checksum of the payload, as `payload_digest` returns it.
    """

    recipe: Recipe
    shape: KVShape
    facts: Mapping[str, str]
    payload_sha256: str

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
        """Return the start of the file: the length of the header, and the header with its own checksum.

        Raises:
            StoreError: The header is larger than readers accept.
        """
        tree = {"__metadata__": _metadata_of(self), **_entries(self.tensor_specs)}
        text = json.dumps(tree, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        if len(text) > MAX_HEADER_BYTES:
            raise StoreError(
                f"the header of encoding {self.recipe.key} has {len(text):,} bytes, the limit is {MAX_HEADER_BYTES:,}; "
                "keep shorter facts with it"
            )
        blank = len(text).to_bytes(8, "little") + text
        at = 8 + len(_START)
        return blank[:at] + hashlib.sha256(blank).hexdigest().encode() + blank[at + _DIGITS :]


def pack(stored: StoredEncoding) -> tuple[bytes, tuple[memoryview, ...]]:
    """Return the header of a file as bytes, and the bytes of its tensors in file order, without copying them.

    Raises:
        StoreError: The tensors are not those that the codec prescribes, or the encoding has no tokens.
    """
    key = stored.recipe.key
    if stored.recipe.num_tokens < 1:
        raise StoreError(f"cannot store encoding {key}: it has no tokens")
    header = Header(recipe=stored.recipe, shape=stored.shape, facts=stored.facts, payload_sha256=_NO_DIGEST)
    expected = header.tensor_specs
    given = {name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in stored.tensors.items()}
    if given != expected:
        raise StoreError(f"cannot store encoding {key}: codec {stored.recipe.codec} needs {expected}, not {given}")
    payload = tuple(_bytes_of(stored.tensors[name]) for name in expected)
    return replace(header, payload_sha256=payload_digest(payload)).to_bytes(), payload


def unpack(header: Header, payload: memoryview) -> StoredEncoding:
    """Return an encoding whose tensors are views of `payload`, which is writable and has the size in the header."""
    parts = _split_payload(header.tensor_specs, payload)
    tensors = {
        name: torch.frombuffer(part, dtype=spec.dtype).view(spec.shape)
        for (name, spec), part in zip(header.tensor_specs.items(), parts, strict=True)
    }
    return StoredEncoding(
        recipe=header.recipe, shape=header.shape, tensors=MappingProxyType(tensors), facts=header.facts
    )


def read_header(head: bytes, file_bytes: int, source: str, key: str | None = None) -> tuple[Header, int]:
    """Return the header of a file and the offset of its payload.

    Args:
        head: Start of the file, of the length that `head_bytes` returns.
        file_bytes: Size of the file.
        source: Name of the file for messages.
        key: Key in the name of the file, or None for a file without a key in its name.

    Raises:
        CorruptEncoding: The file is not an encoding, or has another version, key or size.
    """
    start = _payload_start(head, file_bytes, source)
    header, own_key = _parse(head[:start], file_bytes, source)
    if file_bytes != start + header.payload_bytes:
        raise CorruptEncoding(f"{source}: has {file_bytes} bytes; its header says {start + header.payload_bytes}")
    if key is not None and own_key != key:
        raise CorruptEncoding(f"{source}: holds the encoding {own_key}, which is not its name")
    return header, start


def format_version(head: bytes) -> str | None:
    """Return the format version of a file that begins with `head`, or None if it is not an encoding."""
    try:
        return _read_metadata(head[8 : 8 + int.from_bytes(head[:8], "little")]).get("version")
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def head_bytes(first: bytes) -> int:
    """Return how many bytes `read_header` needs of a file, from its first 8 bytes."""
    return 8 + min(int.from_bytes(first[:8], "little"), MAX_HEADER_BYTES)


def check_payload(header: Header, payload: memoryview, source: str) -> None:
    """Verify the checksum of a payload.

    Raises:
        CorruptEncoding: The payload does not match its checksum.
    """
    if payload_digest(_split_payload(header.tensor_specs, payload)) != header.payload_sha256:
        raise CorruptEncoding(f"{source}: its payload does not match its checksum")


def check_shape(header: Header, shape: KVShape, source: str) -> None:
    """Verify that a file holds KV of a model's shape. A key belongs to one model, so another shape is a fault.

    Raises:
        CorruptEncoding: The shapes differ.
    """
    if header.shape != replace(shape, device=header.shape.device):
        raise CorruptEncoding(f"{source}: holds KV of {shape_text(header.shape)}; this model's is {shape_text(shape)}")


def shape_text(shape: KVShape) -> str:
    """Return a shape as text for messages: dtype, layers, KV heads and head dim."""
    sizes = [shape.num_layers, shape.num_kv_heads, shape.head_dim]
    return f"{str(shape.dtype).removeprefix('torch.')} {sizes}"


def payload_digest(parts: Sequence[memoryview]) -> str:
    """Return the checksum of a payload: the sha256 of the sha256 digests of the pieces of all tensors."""
    pieces = [part[at : at + PIECE_BYTES] for part in parts for at in range(0, len(part), PIECE_BYTES)]
    workers = min(len(pieces), os.cpu_count() or 1, 8)
    if len(parts) == len(pieces) or workers == 1:  # small: threads would cost more than they save
        return _combine(map(_digest, pieces))
    with ThreadPoolExecutor(workers) as pool:  # hashlib releases the GIL
        return _combine(pool.map(_digest, pieces))


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _combine(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _split_payload(specs: Mapping[str, TensorSpec], payload: memoryview) -> list[memoryview]:
    parts = []
    for spec in specs.values():
        parts.append(payload[: spec.nbytes])
        payload = payload[spec.nbytes :]
    return parts


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().flatten().view(torch.uint8).numpy().data


def _payload_start(head: bytes, file_bytes: int, source: str) -> int:
    length = int.from_bytes(head[:8], "little")
    if file_bytes < 8 + len(_START) + _DIGITS:
        raise CorruptEncoding(f"{source}: has only {file_bytes} bytes")
    if not head.startswith(_START, 8):
        raise CorruptEncoding(f"{source}: is not an encoding of this library")
    if length > min(MAX_HEADER_BYTES, len(head) - 8):
        raise CorruptEncoding(f"{source}: is truncated: its header has {length} bytes, the file {file_bytes}")
    return 8 + length


def _parse(raw: bytes, file_bytes: int, source: str) -> tuple[Header, str]:
    try:
        fields = _read_metadata(raw[8:])
        if fields.get("version") != str(FORMAT_VERSION):
            found = fields.get("version")
            raise CorruptEncoding(f"{source}: has format version {found}; this library reads version {FORMAT_VERSION}")
        header = _header_of(fields, 2 * file_bytes)  # no codec packs more numbers into a byte
        if header.to_bytes() != raw:
            raise CorruptEncoding(f"{source}: its header does not match its checksum")
        return header, header.recipe.key
    except CorruptEncoding:
        raise
    except (StoreError, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptEncoding(f"{source}: its header cannot be read: {error}") from error


def _read_metadata(text: bytes) -> Mapping[str, str]:
    fields = json.loads(text)["__metadata__"]
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise TypeError("its metadata are not texts")
    return fields


def _metadata_of(header: Header) -> dict[str, str]:
    recipe, shape = header.recipe, header.shape
    facts = {f"{_FACT}{name}": header.facts[name] for name in sorted(header.facts)}
    return {
        "header_sha256": _NO_DIGEST,
        "payload_sha256": header.payload_sha256,
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
        **facts,
    }


def _header_of(fields: Mapping[str, str], max_numbers: int) -> Header:
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
        payload_sha256=fields["payload_sha256"],
    )


def _entries(specs: Mapping[str, TensorSpec]) -> dict[str, object]:
    entries: dict[str, object] = {}
    start = 0
    for name, spec in specs.items():
        stop = start + spec.nbytes
        entries[name] = {"dtype": _DTYPE_NAMES[spec.dtype], "shape": spec.shape, "data_offsets": (start, stop)}
        start = stop
    return entries
