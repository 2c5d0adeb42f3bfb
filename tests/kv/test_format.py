"""The file of an encoding is read back bit for bit, or it is refused."""

import hashlib
import json
import pickle
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import CorruptEncoding, TierUnavailable
from promptcache.kv import FORMAT_VERSION, Codec, Recipe, StoredEncoding
from promptcache.kv.files.format import PIECE_BYTES, pack, unpack
from tests.kv.stored import content, random_stored, recipe, shape, small
from tests.speed import is_within

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ONE = small()
FILE = pack(ONE)
KEY = ONE.recipe.key


@pytest.fixture(params=["bytes", "file"])
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], bytes | BinaryIO]:
    """Return the form in which a tier returns a file: its content, or the open file."""

    def opened(data: bytes) -> BinaryIO:
        (tmp_path / "file").write_bytes(data)
        return (tmp_path / "file").open("rb")

    return opened if request.param == "file" else lambda data: data


Form = Callable[[bytes], bytes | BinaryIO]


def unpacked(data: bytes | BinaryIO, key: str = KEY) -> StoredEncoding:
    return unpack(data, "the file", key)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_dtype_is_read_back_bit_for_bit(dtype: torch.dtype, codec: Codec, form: Form) -> None:
    stored = random_stored(recipe("m", 37, codec), shape(dtype, head_dim=15), {"loss": "0.1 %", "ärger": "\n"})

    assert content(unpacked(form(pack(stored)), stored.recipe.key)) == content(stored)


@given(
    fingerprint=st.text(st.characters(codec="utf-8"), max_size=5),
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    num_tokens=st.integers(1, 20),
    first=st.integers(0, 9) | st.integers(0, 2**62),
    gaps=st.integers(0, 9) | st.integers(0, 2**62 - 20),
    codec=st.sampled_from(Codec),
)
def test_any_recipe_is_read_back(
    fingerprint: str, digest: str, num_tokens: int, first: int, gaps: int, codec: Codec
) -> None:
    made_of = Recipe(
        fingerprint=fingerprint,
        digest=digest,
        num_tokens=num_tokens,
        first_position=first,
        last_position=first + num_tokens - 1 + gaps,
        codec=codec,
    )

    assert unpacked(pack(random_stored(made_of, shape(head_dim=1))), made_of.key).recipe == made_of


@pytest.mark.parametrize("num_tokens", [1, PIECE_BYTES // 64, PIECE_BYTES // 64 + 1, PIECE_BYTES // 20])
def test_threads_compute_the_checksum_of_the_specification(num_tokens: int) -> None:
    """The checksum is that of docs/store-format.md, however many threads compute it."""
    file = pack(random_stored(recipe("m", num_tokens), shape(), {"note": "x"}))
    start = 8 + int.from_bytes(file[:8], "little")
    metadata = json.loads(file[8:start])["__metadata__"]
    middle = (start + len(file)) // 2
    tensors = [file[start:middle], file[middle:]]
    pieces = [part[at : at + PIECE_BYTES] for part in tensors for at in range(0, len(part), PIECE_BYTES)]
    stated = metadata.pop("sha256")

    first = json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode()
    assert stated == hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in (first, *pieces))).hexdigest()


def test_writing_to_the_tensors_of_a_file_does_not_change_it(tmp_path: Path) -> None:
    """A file is mapped for this process alone, is closed, and may be removed."""
    path = tmp_path / "file"
    path.write_bytes(FILE)
    found, again = unpacked(file := path.open("rb")), unpacked(path.open("rb"))
    found.tensors["keys"].zero_()

    assert file.closed
    assert path.read_bytes() == FILE
    path.unlink()
    assert content(again) == content(ONE)


def test_truncated_files_are_refused(form: Form) -> None:
    """A file that is truncated at any byte is refused, and so is a longer one."""
    for data in (*(FILE[:length] for length in range(len(FILE))), FILE + b"\0", FILE + FILE):
        with pytest.raises(CorruptEncoding):
            unpacked(form(data))


LARGE = small("large", 64)


@pytest.mark.parametrize(
    ("stored", "count"),
    [(ONE, 400), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((ONE, 8 * len(FILE)), (LARGE, 2000)))],
)
def test_flipped_bits_are_found(form: Form, stored: StoredEncoding, count: int) -> None:
    """A file with one flipped bit is refused, unless it is read as before."""
    data, num_found = pack(stored), 0
    for position in random.Random(0).sample(range(8 * len(data)), count):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        try:
            assert content(unpacked(form(bytes(flipped)), stored.recipe.key)) == content(stored)
        except CorruptEncoding:
            num_found += 1
    assert num_found > 0.95 * count


def test_a_file_under_another_name_is_refused() -> None:
    with pytest.raises(CorruptEncoding, match=f"holds the encoding {KEY}, which is not its name"):
        unpacked(FILE, small("other").recipe.key)


def forged(tensors: dict[str, torch.Tensor | None] | None = None, **metadata: str | None) -> bytes:
    """Return the file with other tensors or metadata, and a valid checksum. None removes one."""
    held = json.loads(FILE[8 : 8 + int.from_bytes(FILE[:8], "little")])["__metadata__"] | metadata
    held = {name: text for name, text in held.items() if text is not None}
    kept = {name: each for name, each in {**ONE.tensors, **(tensors or {})}.items() if each is not None}
    about = json.dumps({name: held[name] for name in held if name != "sha256"}, sort_keys=True, separators=(",", ":"))
    parts = [about.encode(), *(kept[name].flatten().view(torch.uint8).numpy().tobytes() for name in sorted(kept))]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return safetensors.torch.save(kept, {**held, "sha256": hashlib.sha256(digests).hexdigest()})


def test_a_forgery_without_a_change_is_the_original() -> None:
    """A forged file without a change is read, so forgeries are refused for their change."""
    assert content(unpacked(forged())) == content(ONE)


def test_another_version_is_refused_by_its_number() -> None:
    words = rf"has format version {FORMAT_VERSION + 1}, this library reads version {FORMAT_VERSION}$"

    with pytest.raises(CorruptEncoding, match=words):
        unpacked(forged(version=str(FORMAT_VERSION + 1)))


KEYS = ONE.tensors["keys"]
FORGERIES: dict[str, dict[str, Any]] = {
    "keys shorter than values": {"tensors": {"keys": KEYS[:, :, :2].contiguous()}},
    "other layout of the same bytes": {"tensors": {"keys": KEYS.reshape(1, 2, 3, 8)}},
    "dtype": {"tensors": {"keys": KEYS.view(torch.int32)}},
    "dtype of both": {"tensors": {name: ONE.tensors[name].view(torch.float16) for name in ("keys", "values")}},
    "tensor missing": {"tensors": {"values": None}},
    "no tensors": {"tensors": {"keys": None, "values": None}},
    "tensor more": {"tensors": {"more": KEYS.clone()}},
    "metadata missing": {"digest": None},
    "no layers": {"num_layers": "0"},
    "negative heads": {"num_kv_heads": "-1", "num_layers": "-2"},
    "no number": {"num_layers": "two"},
    "enormous number": {"head_dim": "9" * 5000},
    "number beyond floats": {"head_dim": "9" * 4000, "codec": "int4"},
    "sizes beyond memory": {"head_dim": str(2**62)},
    "unknown codec": {"codec": "zip"},
    "other codec": {"codec": "int8"},
    "fewer tokens": {"num_tokens": "2"},
    "tokens beyond memory": {"num_tokens": str(2**62), "last_position": str(2**62)},
    "position before the first": {"first_position": "-1"},
    "other digest": {"digest": "0" * 64},
    "other fingerprint": {"fingerprint": "large"},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_file_is_refused(name: str, form: Form) -> None:
    """A forged file is refused, and no memory is allocated for it."""
    file = form(forged(**FORGERIES[name]))

    tracemalloc.start()
    try:
        with pytest.raises(CorruptEncoding):
            unpacked(file)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_sizes_beyond_memory_of_the_right_key_are_refused() -> None:
    """Metadata that give the right key and a quantized encoding of any size allocate nothing."""
    huge = Recipe(fingerprint="f", digest="0" * 64, num_tokens=2**62, first_position=0, last_position=2**62)
    lossy = Recipe(**{**vars(huge), "codec": Codec.INT8})
    about = {name: str(value) for name, value in vars(lossy).items() if name != "key"} | {"head_dim": str(2**62)}

    with pytest.raises(CorruptEncoding, match="its tensors are not those of"):
        unpacked(forged({"keys.low": torch.zeros(1)}, **about), lossy.key)


class Planted:
    """Object that fails the test if it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return pytest.fail, ("a pickle was loaded",)


def raw(header: str) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode()


HOSTILE = {
    "empty": b"",
    "zeros": bytes(4096),
    "pickle": pickle.dumps(Planted()),
    "text": b"<schema/>" * 100,
    "header beyond the end": (2**40).to_bytes(8, "little") + FILE[8:],
    "header of all that is there": (2**64 - 1).to_bytes(8, "little") + FILE[8:],
    "header of nothing": bytes(8) + FILE[8:],
    "no metadata": raw("{}"),
    "metadata of numbers": raw('{"__metadata__":{"version":5}}'),
    "nested too deeply": raw('{"x":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "offsets beyond the end": raw('{"keys":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_foreign_files_are_refused(name: str, form: Form) -> None:
    """A foreign file is refused within a second of CPU time."""
    started = time.process_time()

    with pytest.raises(CorruptEncoding):
        unpacked(form(HOSTILE[name]))

    assert is_within(time.process_time() - started, 1)


def test_a_file_that_cannot_be_mapped_is_a_fault_of_its_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot map files is no damage, for which the file would be deleted."""
    (tmp_path / "file").write_bytes(FILE)

    def refuse(*_: object) -> None:
        raise OSError("No such device (os error 19)")

    monkeypatch.setattr(safetensors, "safe_open", refuse)

    with pytest.raises(TierUnavailable, match="the file: cannot be mapped: No such device"):
        unpacked((tmp_path / "file").open("rb"))


RECIPES = st.builds(
    Recipe,
    fingerprint=st.text(alphabet="ab0\nä", max_size=3),
    digest=st.text(alphabet="0a", min_size=2, max_size=2).map(lambda end: end.rjust(64, "f")),
    num_tokens=st.integers(1, 3),
    first_position=st.integers(0, 2),
    last_position=st.integers(10, 12),
    codec=st.sampled_from(Codec),
)


@given(one=RECIPES, other=RECIPES)
def test_keys_are_equal_if_recipes_are(one: Recipe, other: Recipe) -> None:
    assert (one.key == other.key) == (one == other)
    assert len(one.key) == 64
