"""What seldom happens to what rests: files that change while they are read, disks that fail, archives of nothing."""

from __future__ import annotations

import errno
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from promptcache.diagnostics import CorruptEncoding, StoreError
from promptcache.kv import Pace, Tier
from promptcache.kv.files import folder as reading
from promptcache.kv.files.archive import read_archive
from promptcache.kv.files.disk import DiskTier
from tests.kv.stored import small, whole_file

KEY = small().recipe.key


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of an encoding."""
    path = tmp_path / "encoding"
    path.write_bytes(whole_file(small()))
    return path


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_is_cut_while_it_is_opened_is_corrupt(
    file: Path, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload of which a part is gone once its header was read is refused, and not waited for."""
    original = reading._header

    def cut(descriptor: int, path: Path, key: str) -> Any:
        found = original(descriptor, path, key)
        os.truncate(path, found[1] + 1)
        return found

    monkeypatch.setattr(reading, "_header", cut)

    with pytest.raises(CorruptEncoding, match="changed while it was opened"):
        reading.open_encoding(file, KEY, mapped=mapped)


@pytest.mark.parametrize(("number", "told"), [(errno.EIO, CorruptEncoding), (errno.EMFILE, OSError)])
def test_only_what_is_wrong_with_a_file_is_told_of_it(
    file: Path, number: int, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that cannot read this very file makes it corrupt; what fails for any file stays what it is."""

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(reading.os, "preadv", fail)

    with pytest.raises(told) as caught:
        reading.open_encoding(file, KEY, mapped=False)
    assert isinstance(caught.value, CorruptEncoding) == (number == errno.EIO)


def test_an_archive_of_nothing_is_none(tmp_path: Path) -> None:
    """A tar file without members is no archive of encodings."""
    tarfile.open(tmp_path / "a.tar", "w").close()

    with pytest.raises(StoreError, match="it is empty"):
        read_archive(tmp_path / "a.tar", DiskTier(tmp_path / "to"))


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), True])
def test_a_latency_is_some_time(seconds: float) -> None:
    """Whoever says how long a tier takes gives seconds, from 0 on."""
    with pytest.raises(StoreError, match="a number of seconds from 0 on"):
        Pace(encode_tokens_per_s=1.0, load_bytes_per_s={}, latency_s={Tier.DISK: seconds})
