"""A tier of files under a URL: what does not answer, what is wrong, timeouts, and parallel reads."""

import functools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from promptcache.diagnostics import StoreError, TierUnavailable
from promptcache.kv import FileTier, Tier
from promptcache.kv.files import tier as tier_module
from tests.kv.stored import FailingFiles, emptied, read, small, store_over, write

ONE = small("one")
KEY = ONE.recipe.key
FILE = f"{KEY}.safetensors"


class BackendError(Exception): ...


@pytest.fixture
def failing() -> Iterator[type[FailingFiles]]:
    with emptied():
        yield FailingFiles


def test_a_huge_object_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "encodings").mkdir()
    (tmp_path / "encodings" / FILE).touch()
    os.truncate(tmp_path / "encodings" / FILE, 2**40)

    assert "is not a file of at most" in store_over(FileTier(f"file://{tmp_path}")).get(KEY).faults[0]


class ConnectingFiles(MemoryFileSystem):
    """File system that connects when it is opened, like ftp."""

    protocol = ("connecting",)
    store: dict = {}  # noqa: RUF012 - as its parent keeps it
    pseudo_dirs = [""]  # noqa: RUF012
    error: Exception | None = None
    wait = staticmethod(lambda: None)

    def __init__(self, *args: object, **named: object) -> None:
        type(self).wait()
        if type(self).error is not None:
            raise type(self).error
        super().__init__(*args, **named)


fsspec.register_implementation("connecting", ConnectingFiles, clobber=True)


def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the clock of the tier to the last number of a list."""
    now = [0.5]
    monkeypatch.setattr(tier_module, "time", SimpleNamespace(monotonic=lambda: now[-1], time_ns=time.time_ns))
    return now


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), OSError(113, "No route to host")], ids=repr)
def test_a_url_that_does_not_answer_is_connected_to_later(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that does not answer at first is accepted, reports the fault, and is connected to later."""
    monkeypatch.setattr(ConnectingFiles, "error", error)
    monkeypatch.setattr(ConnectingFiles, "store", {})
    now = _clock(monkeypatch)
    tier = FileTier("connecting://user:secret@host/kept", retry_after_s=2)

    with pytest.raises(
        TierUnavailable, match=r"^connecting://host/kept: cannot read: .*; it is tried again after 2 s$"
    ):
        read(tier, KEY)
    monkeypatch.setattr(ConnectingFiles, "error", None)
    now.append(3.0)

    assert read(tier, KEY) is None
    assert write(tier, ONE)


@pytest.mark.parametrize(
    "error",
    [BackendError("530 login incorrect"), FileNotFoundError(2, "No such file"), TypeError("no such option")],
    ids=repr,
)
def test_a_wrong_url_is_refused_at_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectingFiles, "error", error)

    with pytest.raises(StoreError, match="cannot use this URL as a store: ") as caught:
        FileTier("connecting://host/kept")
    assert str(error) in str(caught.value)


@pytest.mark.parametrize("url", ["nowhere://x", "file://{folder}/plain", "file://{folder}/plain/kept"])
def test_a_url_that_names_no_folder_is_refused(tmp_path: Path, url: str) -> None:
    """An unknown protocol, a file, and a folder in a file are refused at once. A folder that is missing is not."""
    (tmp_path / "plain").touch()

    with pytest.raises(StoreError, match="cannot use this URL as a store: "):
        FileTier(url.format(folder=tmp_path))
    assert list(FileTier(f"file://{tmp_path}/missing").keys()) == []


def test_connecting_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(ConnectingFiles, "wait", staticmethod(lambda: release.wait(20)))
    tier = FileTier("connecting://host/kept", timeout_s=0.1)

    with pytest.raises(TierUnavailable, match="cannot read"):
        read(tier, KEY)
    assert not release.is_set()
    release.set()


def test_an_object_store_is_not_asked_at_the_start(failing: type[FailingFiles]) -> None:
    """Rights to read and write objects suffice, without the right to ask for a folder."""
    failing.fail_on, failing.before = frozenset({"info", "ls"}), refuse
    tier = FileTier("failing://kept")
    failing.fail_on = frozenset()
    assert write(tier, ONE)


def stored_in(tier: FileTier, count: int) -> list[str]:
    made = [small(f"number {number}") for number in range(count)]
    for each in made:
        write(tier, each)
    return [each.recipe.key for each in made]


def test_encodings_are_fetched_in_parallel(failing: type[FailingFiles]) -> None:
    keys = stored_in(FileTier("failing://parallel"), 8)
    together = threading.Barrier(8, timeout=20)
    store = store_over(FileTier("failing://parallel", timeout_s=30))
    failing.fail_on, failing.before = frozenset({"info"}), together.wait

    found = store.get_many(keys)

    assert list(found) == keys
    assert all(lookup.kv is not None and lookup.tier is Tier.REMOTE and not lookup.faults for lookup in found.values())


class SingleConnection(fsspec.AbstractFileSystem):
    """File system with one connection, which two threads must not use at once."""

    protocol = ("single",)
    cachable = False
    busy = 0
    most = 0

    def __getattribute__(self, name: str) -> object:
        if name in ("info", "cat_file", "ls", "pipe_file"):
            return functools.partial(SingleConnection._use, name)
        return super().__getattribute__(name)

    @staticmethod
    def _use(name: str, path: str, *rest: object, **named: object) -> object:
        SingleConnection.busy += 1
        SingleConnection.most = max(SingleConnection.most, SingleConnection.busy)
        try:
            time.sleep(0.002)
            return getattr(MemoryFileSystem(), name)(f"/single/{path}", *rest, **named)
        finally:
            SingleConnection.busy -= 1


fsspec.register_implementation("single", SingleConnection, clobber=True)


def test_one_connection_is_used_by_one_thread() -> None:
    tier = FileTier("single://x")
    keys = stored_in(tier, 6)
    stores = [store_over(tier) for _ in range(3)]
    SingleConnection.most = 0
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda store: store.get_many(keys), stores))

    assert SingleConnection.most == 1
    assert all(lookup.kv is not None for each in found for lookup in each.values())


def refuse() -> None:
    raise PermissionError("no such right")


def test_operations_have_a_timeout(failing: type[FailingFiles], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a timeout there is a typed error, and the URL is not used for a while."""
    release = threading.Event()
    now = _clock(monkeypatch)
    tier = FileTier("failing://slow", timeout_s=1, retry_after_s=2)
    failing.fail_on, failing.before = frozenset({"info"}), lambda: release.wait(20)
    started = time.monotonic()

    with pytest.raises(TierUnavailable, match=r"^failing://slow: cannot read: no answer within 1 s$"):
        read(tier, KEY)
    assert time.monotonic() - started < 10
    for ask in (lambda: read(tier, KEY), lambda: write(tier, ONE), lambda: list(tier.keys())):
        with pytest.raises(TierUnavailable, match=r"it is tried again after 2 s"):
            ask()

    release.set()
    failing.fail_on = frozenset()
    now.append(3.0)
    assert write(tier, ONE)
    assert read(tier, KEY) is not None


@pytest.mark.parametrize("error", [BackendError("lost"), ConnectionError("lost"), ValueError("lost")], ids=repr)
def test_errors_of_backends_become_one_type(failing: type[FailingFiles], error: Exception) -> None:
    tier = FileTier("failing://odd")

    def fail() -> None:
        raise error

    failing.fail_on, failing.before = frozenset({"info", "pipe_file"}), fail
    for what, ask in (("read", lambda: read(tier, KEY)), ("write", lambda: write(tier, ONE))):
        with pytest.raises(TierUnavailable, match=f"^failing://odd: cannot {what}: lost$") as caught:
            ask()
        assert caught.value.__cause__ is error


def test_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    """A write removes files in `incoming/` that are older than an hour; younger and foreign ones stay."""
    (tmp_path / "incoming").mkdir()
    now_ns = time.time_ns()
    old, young = (f"{FILE}.7.{now_ns - minutes * 60 * 10**9}.tmp" for minutes in (61, 59))
    for name in (old, young, "notes.txt"):
        (tmp_path / "incoming" / name).touch()

    write(FileTier(f"file://{tmp_path}"), ONE)

    assert {path.name for path in (tmp_path / "incoming").iterdir()} == {young, "notes.txt"}
