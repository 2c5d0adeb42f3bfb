"""The beginning of an encoding's file: everything that it says of itself. `docs/store-format.md` is its specification.

Comes in: what an encoding is, or a file's first bytes. Goes out: a file's first bytes, or what the encoding is. Nothing
is believed: a header is right only if writing it anew gives the same bytes.
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
from promptcache.kv.codec import Form, StoredEncoding, forms
from promptcache.kv.keys import FORMAT_VERSION, Codec, Recipe
from promptcache.kv.types import KVShape

MAX_HEADER_BYTES = 16 * 2**20

_ALIGNMENT = 64
_DIGITS = 64
NO_DIGEST = "0" * _DIGITS
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
    """What a file says of itself; `StoredEncoding` without the tensors.

    Attributes:
        payload_sha256: As `payload_digest` gives it.
    """

    recipe: Recipe
    shape: KVShape
    facts: Mapping[str, str]
    payload_sha256: str

    @property
    def forms(self) -> Mapping[str, Form]:
        """The tensors by name, in the order in which they lie: the widest dtypes first, so that all are aligned."""
        unsorted = forms(self.recipe.codec, self.shape, self.recipe.num_tokens)
        return dict(sorted(unsorted.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(form.nbytes for form in self.forms.values())

    def to_bytes(self) -> bytes:
        """Return the file's beginning: the length, and the header with its own checksum.

        Raises:
            StoreError: It is larger than any reader would take.
        """
        tree = {"__metadata__": _fields(self), **_entries(self.forms)}
        text = json.dumps(tree, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        if len(text) > MAX_HEADER_BYTES:
            raise StoreError(f"a header of {len(text)} bytes is too large; the limit is {MAX_HEADER_BYTES}")
        blank = len(text).to_bytes(8, "little") + text
        at = 8 + len(_START)
        return blank[:at] + hashlib.sha256(blank).hexdigest().encode() + blank[at + _DIGITS :]


def read_header(head: bytes, file_bytes: int, source: str, key: str | None = None) -> tuple[Header, int]:
    """Return the header of a file, and where its payload starts.

    Args:
        head: The file, or as much of it from its beginning as `head_bytes` says.
        file_bytes: How many bytes the file has.
        source: Names the file in messages.
        key: What the file is named after, where it has a name.

    Raises:
        CorruptEncoding: This is no such file, or one of another version, another key or another length.
    """
    start = _payload_start(head, file_bytes, source)
    header, own_key = _parse(head[:start], file_bytes, source)
    if file_bytes != start + header.payload_bytes:
        raise CorruptEncoding(f"{source}: has {file_bytes} bytes; its header says {start + header.payload_bytes}")
    if key is not None and own_key != key:
        raise CorruptEncoding(f"{source}: holds the encoding {own_key}, which is not its name")
    return header, start


def format_version(head: bytes) -> str | None:
    """Return the version of the format of a file that begins with `head`; None for what is no such file."""
    try:
        return _metadata(head[8 : 8 + int.from_bytes(head[:8], "little")]).get("version")
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def head_bytes(first: bytes) -> int:
    """Return how many bytes of a file that starts with these 8 to read for `read_header`, whatever the file is."""
    return 8 + min(int.from_bytes(first[:8], "little"), MAX_HEADER_BYTES)


def _parse(raw: bytes, file_bytes: int, source: str) -> tuple[Header, str]:
    try:
        fields = _metadata(raw[8:])
        if fields.get("version") != str(FORMAT_VERSION):
            found = fields.get("version")
            raise CorruptEncoding(f"{source}: has format version {found}; this library reads version {FORMAT_VERSION}")
        header = _header(fields, 2 * file_bytes)  # no codec packs more numbers into a byte
        if header.to_bytes() != raw:
            raise CorruptEncoding(f"{source}: its header does not match its checksum")
        return header, header.recipe.key
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptEncoding(f"{source}: its header cannot be read: {error}") from error


def _payload_start(head: bytes, file_bytes: int, source: str) -> int:
    length = int.from_bytes(head[:8], "little")
    if file_bytes < 8 + len(_START) + _DIGITS:
        raise CorruptEncoding(f"{source}: has only {file_bytes} bytes")
    if not head.startswith(_START, 8):
        raise CorruptEncoding(f"{source}: is not an encoding that this library wrote")
    if length > min(MAX_HEADER_BYTES, len(head) - 8):
        raise CorruptEncoding(f"{source}: its header should have {length} bytes; the file has {file_bytes}")
    return 8 + length


def _metadata(text: bytes) -> Mapping[str, str]:
    fields = json.loads(text)["__metadata__"]
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise TypeError("its metadata are not texts")
    return fields


def _fields(header: Header) -> dict[str, str]:
    recipe, shape = header.recipe, header.shape
    facts = {f"{_FACT}{name}": header.facts[name] for name in sorted(header.facts)}
    return {
        "header_sha256": NO_DIGEST,
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


def _header(fields: Mapping[str, str], max_numbers: int) -> Header:
    sizes = {name: int(fields[name]) for name in ("num_layers", "num_kv_heads", "head_dim")}
    num_tokens = int(fields["num_tokens"])
    if min(num_tokens, *sizes.values()) < 1:
        raise ValueError("its sizes are not those of any KV")
    if num_tokens * math.prod(sizes.values()) > max_numbers:
        raise ValueError("its sizes are beyond the file's")
    first, last = int(fields["first_position"]), int(fields["last_position"])
    if not (0 <= first <= last - num_tokens + 1 and last < 2**63):
        raise ValueError("its positions are not those of any encoding")
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


def _entries(all_forms: Mapping[str, Form]) -> dict[str, object]:
    entries: dict[str, object] = {}
    start = 0
    for name, form in all_forms.items():
        stop = start + form.nbytes
        entries[name] = {"dtype": _DTYPE_NAMES[form.dtype], "shape": form.shape, "data_offsets": (start, stop)}
        start = stop
    return entries


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
