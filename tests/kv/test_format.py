"""The file of an encoding is read back bit for bit, or it is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import CorruptEncoding, StoreError
from promptcache.kv import Codec, Recipe, StoredEncoding
from promptcache.kv.files.format import PIECE_BYTES, pack, unpack
from promptcache.kv.keys import FORMAT_VERSION
from promptcache.layout import Encoding
from tests.kv.stored import bits, content, random_stored, recipe, shape, small
from tests.speed import is_within

SPEC = Path(__file__).parents[2] / "docs" / "store-format.md"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FILE = pack(small())
KEY = small().recipe.key


def unpacked(data: bytes, key: str = KEY) -> StoredEncoding:
    """Read the bytes of a file, as a store does."""
    return unpack(data, "the file", key)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_dtype_is_read_back_bit_for_bit(dtype: torch.dtype, codec: Codec) -> None:
    """Reading returns what was written, NaNs and facts included."""
    stored = random_stored(recipe("m", 37, codec), shape(dtype, head_dim=16), {"loss": "0.1 %", "ärger": "\n"})

    assert content(unpacked(pack(stored), stored.recipe.key)) == content(stored)


def test_views_are_written_by_their_content() -> None:
    """Tensors are written by their content, also if they are views with strides."""
    kv = torch.randn(2, 1, 8, 6).transpose(2, 3)[:, :, 1:4]
    stored = StoredEncoding(recipe=recipe("m"), shape=shape(), tensors={"keys": kv, "values": -kv})

    found = unpacked(pack(stored), stored.recipe.key)

    assert torch.equal(found.tensors["keys"], kv)
    assert torch.equal(found.tensors["values"], -kv)


@given(
    fingerprint=st.text(max_size=5),
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    num_tokens=st.integers(1, 20),
    first=st.integers(0, 9) | st.integers(0, 2**62),
    gaps=st.integers(0, 9) | st.integers(0, 2**62 - 20),
    codec=st.sampled_from(Codec),
)
def test_any_recipe_is_read_back(
    fingerprint: str, digest: str, num_tokens: int, first: int, gaps: int, codec: Codec
) -> None:
    """The header holds the whole recipe, which gives the same key."""
    made_of = Recipe(
        fingerprint=fingerprint,
        digest=digest,
        num_tokens=num_tokens,
        first_position=first,
        last_position=first + num_tokens - 1 + gaps,
        codec=codec,
    )

    found = unpacked(pack(random_stored(made_of, shape(head_dim=1))), made_of.key)

    assert found.recipe == made_of
    assert found.recipe.key == made_of.key


def test_safetensors_reads_the_file(tmp_path: Path) -> None:
    """The safetensors library reads the file."""
    stored = small()
    (tmp_path / "file").write_bytes(pack(stored))

    with safetensors.safe_open(tmp_path / "file", "pt") as file:
        assert file.metadata()["fingerprint"] == "small"
        assert {name: bits(file.get_tensor(name)) for name in file.keys()} == {  # noqa: SIM118
            name: bits(tensor) for name, tensor in stored.tensors.items()
        }


def test_tensors_are_aligned() -> None:
    """The payload starts at a multiple of 64 bytes."""
    for name in ("m", "mm", "mmm", "ä" * 40):
        file = pack(small(name))

        assert int.from_bytes(file[:8], "little") % 64 == 56


@pytest.mark.parametrize("num_tokens", [1, PIECE_BYTES // 64, PIECE_BYTES // 64 + 1, PIECE_BYTES // 20])
def test_threads_compute_the_checksum_of_the_specification(num_tokens: int) -> None:
    """Threads compute the checksum that the specification defines."""
    file = pack(random_stored(recipe("m", num_tokens), shape()))
    stop = 8 + int.from_bytes(file[:8], "little")
    metadata = json.loads(file[8:stop])["__metadata__"]
    blank = file[:stop].replace(metadata["sha256"].encode(), b"0" * 64, 1)
    half = (len(file) - stop) // 2
    parts = [file[stop : stop + half], file[stop + half :]]
    pieces = [part[at : at + PIECE_BYTES] for part in parts for at in range(0, len(part), PIECE_BYTES)]

    expected = hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in (blank, *pieces))).hexdigest()

    assert metadata["sha256"] == expected


def test_truncated_files_are_refused() -> None:
    """A file that is truncated at any byte is refused."""
    for length in range(len(FILE)):
        with pytest.raises(CorruptEncoding):
            unpacked(FILE[:length])


def test_the_error_for_a_truncated_header_has_both_sizes() -> None:
    """The error for a truncated header has the size of the header and of the file."""
    with pytest.raises(CorruptEncoding, match=r"is truncated, or no encoding: its header ends at [0-9]+, it at 500$"):
        unpacked(FILE[:500], KEY)


@pytest.mark.parametrize("more", [b"\0", b" ", FILE])
def test_extra_bytes_are_refused(more: bytes) -> None:
    """A file with extra bytes at its end is refused."""
    with pytest.raises(CorruptEncoding, match="its header says"):
        unpacked(FILE + more, KEY)


def flipped(data: bytes, position: int) -> bytes:
    """Return the bytes with one bit flipped."""
    changed = bytearray(data)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def test_flipped_bits_are_found() -> None:
    """A file with one flipped bit is refused."""
    for position in random.Random(0).sample(range(8 * len(FILE)), 400):
        with pytest.raises(CorruptEncoding):
            unpacked(flipped(FILE, position), KEY)


@pytest.mark.slow
def test_every_flipped_bit_is_found() -> None:
    """Every flipped bit of a small file is found, and 2,000 of a larger one."""
    large = pack(small("large", 64))
    for position in random.Random(1).sample(range(8 * len(large)), 2000):
        with pytest.raises(CorruptEncoding):
            unpacked(flipped(large, position), small("large", 64).recipe.key)
    for position in range(8 * len(FILE)):
        with pytest.raises(CorruptEncoding):
            unpacked(flipped(FILE, position), KEY)


def test_a_file_under_another_name_is_refused() -> None:
    """A file whose header gives another key than its name is refused."""
    with pytest.raises(CorruptEncoding, match=f"holds the encoding {KEY}, which is not its name"):
        unpacked(FILE, small("other").recipe.key)


def forged(change: Callable[[dict], object]) -> bytes:
    """Return the file with a changed header that has a valid checksum."""
    length = int.from_bytes(FILE[:8], "little")
    tree = json.loads(FILE[8 : 8 + length])
    text = change(tree)
    return signed(json.dumps(tree, separators=(",", ":")) if not isinstance(text, str) else text, FILE[8 + length :])


def signed(text: str, payload: bytes) -> bytes:
    """Return a file with this header and a valid checksum."""
    blank = re.sub(r'"sha256":"[0-9a-f]{64}"', f'"sha256":"{"0" * 64}"', text, count=1).encode()
    blank += b" " * (-(8 + len(blank)) % 64)
    head = len(blank).to_bytes(8, "little") + blank
    half = len(payload) // 2
    digests = b"".join(hashlib.sha256(each).digest() for each in (head, payload[:half], payload[half:]))
    return head.replace(b"0" * 64, hashlib.sha256(digests).hexdigest().encode(), 1) + payload


def test_a_forgery_without_a_change_is_the_original() -> None:
    """A forged file without a change is the original file, so forgeries are refused for their change."""
    assert forged(lambda tree: None) == FILE


def test_another_version_is_refused_by_its_number() -> None:
    """The error for another version names both versions."""
    file = forged(lambda tree: tree["__metadata__"].update(version=str(FORMAT_VERSION + 1)))

    with pytest.raises(
        CorruptEncoding, match=rf"has format version {FORMAT_VERSION + 1}, this library reads version {FORMAT_VERSION}$"
    ):
        unpacked(file, KEY)


FORGERIES: dict[str, Callable[[dict], object]] = {
    "keys shorter than values": lambda tree: tree["keys"].update(shape=[2, 1, 2, 8]),
    "values longer than keys": lambda tree: tree["values"].update(shape=[2, 1, 4, 8]),
    "other layout of the same bytes": lambda tree: tree["keys"].update(shape=[1, 2, 3, 8]),
    "dtype": lambda tree: tree["keys"].update(dtype="I32"),
    "dtype of the KV": lambda tree: tree["__metadata__"].update(dtype="F64"),
    "unknown dtype": lambda tree: tree["__metadata__"].update(dtype="F12"),
    "overlapping tensors": lambda tree: tree["values"].update(data_offsets=[0, 192]),
    "offsets beyond the end": lambda tree: tree["values"].update(data_offsets=[2**62, 2**62 + 192]),
    "negative offsets": lambda tree: tree["values"].update(data_offsets=[-192, 0]),
    "tensor missing": lambda tree: tree.pop("values"),
    "tensor more": lambda tree: tree.update(more=tree["keys"]),
    "metadata more": lambda tree: tree["__metadata__"].update(more="x"),
    "metadata missing": lambda tree: tree["__metadata__"].pop("digest"),
    "metadata no text": lambda tree: tree["__metadata__"].update(num_layers=2),
    "no layers": lambda tree: tree["__metadata__"].update(num_layers="0"),
    "negative heads": lambda tree: tree["__metadata__"].update(num_kv_heads="-1", num_layers="-2"),
    "number spelled otherwise": lambda tree: tree["__metadata__"].update(num_layers="02"),
    "enormous number": lambda tree: tree["__metadata__"].update(head_dim="9" * 5000),
    "sizes beyond memory": lambda tree: tree["__metadata__"].update(head_dim=str(2**62)),
    "sizes beyond memory, in groups": lambda tree: tree["__metadata__"].update(head_dim=str(2**62), codec="int8"),
    "codec": lambda tree: tree["__metadata__"].update(codec="zip"),
    "other codec": lambda tree: tree["__metadata__"].update(codec="int8"),
    "fewer tokens": lambda tree: tree["__metadata__"].update(num_tokens="2"),
    "more tokens": lambda tree: tree["__metadata__"].update(num_tokens="4", last_position="3"),
    "no tokens": lambda tree: tree["__metadata__"].update(num_tokens="0"),
    "tokens beyond memory": lambda tree: tree["__metadata__"].update(num_tokens=str(2**62), last_position=str(2**62)),
    "position beyond 64 bits": lambda tree: tree["__metadata__"].update(last_position=str(2**64)),
    "position beyond floats": lambda tree: tree["__metadata__"].update(last_position="9" * 400),
    "fewer positions": lambda tree: tree["__metadata__"].update(last_position="1"),
    "positions backwards": lambda tree: tree["__metadata__"].update(first_position="2", last_position="0"),
    "position before the first": lambda tree: tree["__metadata__"].update(first_position="-1"),
    "position spelled otherwise": lambda tree: tree["__metadata__"].update(first_position="+0"),
    "position that is no number": lambda tree: tree["__metadata__"].update(first_position="0-2"),
    "other digest": lambda tree: tree["__metadata__"].update(digest="0" * 64),
    "other fingerprint": lambda tree: tree["__metadata__"].update(fingerprint="large"),
    "fingerprint of half a character": lambda tree: tree["__metadata__"].update(fingerprint="\ud800"),
    "a name twice": lambda tree: json.dumps(tree, separators=(",", ":")).replace('"keys":', '"keys":{},"keys":'),
    "nested too deeply": lambda tree: json.dumps(tree)[:-1] + ',"x":' + "[" * 100_000 + "]" * 100_000 + "}",
    "cut short": lambda tree: json.dumps(tree, separators=(",", ":"))[:-1],
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_header_is_refused(name: str) -> None:
    """A forged header is refused, and no memory is allocated for it."""
    file = forged(FORGERIES[name])

    tracemalloc.start()
    try:
        with pytest.raises(CorruptEncoding):
            unpacked(file, KEY)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


class Planted:
    """Object that fails the test if it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return pytest.fail, ("a pickle was loaded",)


HOSTILE = {
    "empty": b"",
    "zeros": bytes(4096),
    "pickle": pickle.dumps(Planted()),
    "text": b"<schema/>" * 100,
    "header beyond the end": (2**40).to_bytes(8, "little") + FILE[8:],
    "header of all that is there": (2**64 - 1).to_bytes(8, "little") + FILE[8:],
    "header of nothing": bytes(8) + FILE[8:],
    "another safetensors file": (2).to_bytes(8, "little") + b"{}" + bytes(400),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_foreign_files_are_refused(name: str) -> None:
    """A foreign file is refused within a second of CPU time."""
    started = time.process_time()

    with pytest.raises(CorruptEncoding):
        unpacked(HOSTILE[name], KEY)

    assert is_within(time.process_time() - started, 1)


WRONG = {
    "keys shorter": {"keys": torch.zeros(2, 1, 2, 8), "values": torch.zeros(2, 1, 3, 8)},
    "dtype": {"keys": torch.zeros(2, 1, 3, 8), "values": torch.zeros(2, 1, 3, 8).double()},
    "one missing": {"keys": torch.zeros(2, 1, 3, 8)},
    "one more": {name: torch.zeros(2, 1, 3, 8) for name in ("keys", "values", "more")},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tensors_are_not_written(name: str) -> None:
    """Tensors that the codec does not prescribe are not written."""
    with pytest.raises(StoreError, match="cannot store"):
        pack(StoredEncoding(recipe=recipe("m"), shape=shape(), tensors=WRONG[name]))


def test_an_encoding_without_tokens_is_not_written() -> None:
    """An encoding without tokens is not written."""
    nothing = torch.zeros(2, 1, 0, 8)

    with pytest.raises(StoreError, match="no tokens"):
        pack(StoredEncoding(recipe=recipe("m", 0), shape=shape(), tensors={"keys": nothing, "values": nothing}))


def test_the_specification_shows_the_bytes_of_a_file() -> None:
    """The worked example of the specification is what `pack` writes, byte for byte."""
    dump = re.findall(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} ?){1,16})", SPEC.read_text(encoding="utf-8"), re.MULTILINE)
    documented = bytes.fromhex("".join(dump))
    keys, values = torch.tensor([1.0, -2.0]).view(1, 1, 1, 2), torch.tensor([0.5, 3.0]).view(1, 1, 1, 2)
    seen = Encoding(token_ids=(1,), position_ids=(0,))
    encoding = Encoding(token_ids=(72,), position_ids=(4,), context=(seen.whole,))
    made_of = Recipe(fingerprint="demo", digest=encoding.digest, num_tokens=1, first_position=4, last_position=4)
    stored = StoredEncoding(
        recipe=made_of,
        shape=shape(num_layers=1, head_dim=2),
        tensors={"keys": keys, "values": values},
        facts={"note": "worked example"},
    )

    assert documented == pack(stored)
    assert content(unpacked(documented, made_of.key)) == content(stored)
    page = SPEC.read_text(encoding="utf-8")
    assert all(f"`{each}`" in page for each in (seen.digest, encoding.context_digest, encoding.digest, made_of.key))


def test_long_headers_are_not_read() -> None:
    """A header of more than 16 MiB is refused before it is parsed."""
    longer = {"fact:x": "n" * 2**24}

    with pytest.raises(CorruptEncoding, match="is truncated, or no encoding"):
        unpacked(forged(lambda tree: tree["__metadata__"].update(longer)))
