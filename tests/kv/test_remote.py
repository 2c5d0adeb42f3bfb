"""A remote tier returns what was written, bit for bit, or raises a typed error in time."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, SimpleNamespace

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv import BlobTier, MemoryStore, Tier, TieredStore
from promptcache.kv.files import remote
from promptcache.kv.files.format import pack
from promptcache.kv.files.remote import RemoteTier
from tests.conftest import law_examples
from tests.kv.stored import content, file_bytes, read, shape, small, write

ONE = small("one")
KEY = ONE.recipe.key
FILE = f"{KEY}.safetensors"


class BackendError(Exception):
    """Error class of a backend."""


class FailingFiles(MemoryFileSystem):
    """File system whose operations can fail in a test."""

    protocol = ("failing",)
    store: dict = {}  # noqa: RUF012 - as its parent keeps it
    pseudo_dirs = [""]  # noqa: RUF012
    before: Callable[[], object] = staticmethod(lambda: None)
    fail_on: frozenset[str] = frozenset()

    def _answer(self, name: str) -> None:
        if name in type(self).fail_on:
            type(self).before()

    def info(self, path: str, **named: object) -> dict:
        self._answer("info")
        return super().info(path, **named)

    def pipe_file(self, path: str, value: bytes, *rest: object, **named: object) -> None:
        self._answer("pipe_file")
        return super().pipe_file(path, value, *rest, **named)

    def rm_file(self, path: str) -> None:
        self._answer("rm_file")
        super().rm_file(path)


fsspec.register_implementation("failing", FailingFiles, clobber=True)


@pytest.fixture
def failing() -> Iterator[type[FailingFiles]]:
    """Return the failing file system, empty and without faults."""
    yield FailingFiles
    FailingFiles.fail_on, FailingFiles.before = frozenset(), staticmethod(lambda: None)
    FailingFiles.store.clear()
    FailingFiles.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "file", "failing"])
def url(request: pytest.FixtureRequest, tmp_path: Path, failing: type[FailingFiles]) -> Iterator[str]:
    """Return the URL of an empty folder."""
    yield f"{request.param}://{tmp_path}/shared"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def put(url: str, name: str, data: bytes) -> None:
    """Write bytes under a URL, without a tier."""
    files, root = fsspec.core.url_to_fs(url)
    files.makedirs(root, exist_ok=True)
    files.pipe_file(f"{root}/{name}", data)


def names(url: str, folder: str = "") -> list[str]:
    """Return the names of the files under a URL."""
    files, root = fsspec.core.url_to_fs(url)
    if not files.exists(root + folder):
        return []
    return sorted(path.rpartition("/")[2] for path in files.ls(root + folder, detail=False) if files.isfile(path))


def test_the_remote_tier_is_a_tier(url: str) -> None:
    """It implements the interface."""
    assert isinstance(RemoteTier(url), BlobTier)
    assert RemoteTier(url).kind is Tier.REMOTE


def test_another_machine_reads_what_was_written(url: str) -> None:
    """Another tier of the same URL returns the same encoding, stored in the specified format."""
    assert write(RemoteTier(url), ONE)
    later = RemoteTier(url)

    found = read(later, KEY)

    assert found is not None
    assert content(found) == content(ONE)
    assert list(later.keys()) == [KEY]
    files, root = fsspec.core.url_to_fs(url)
    assert files.cat_file(f"{root}/{FILE}") == pack(ONE)
    assert names(url) == [FILE]


def test_missing_encodings_are_misses(url: str) -> None:
    """An empty URL has no encodings, and every query returns that."""
    tier = RemoteTier(url)

    assert read(tier, KEY) is None
    assert list(tier.keys()) == []
    tier.delete(KEY)


def test_the_first_object_stays_until_it_is_deleted(url: str) -> None:
    """Writing a key again keeps the first object, and deleting removes it."""
    tier = RemoteTier(url)
    write(tier, ONE)
    write(tier, small("one", seed=1))
    found = read(tier, KEY)

    assert found is not None
    assert content(found) == content(ONE)
    for _ in range(2):
        tier.delete(KEY)
    assert read(tier, KEY) is None


DAMAGE = {
    "truncated": pack(ONE)[:-1],
    "empty": b"",
    "longer": pack(ONE) + b"\0",
    "flipped": pack(ONE)[:-1] + bytes([pack(ONE)[-1] ^ 1]),
    "foreign": b"x" * 1000,
    "another encoding": pack(small("two")),
}


def store_over(tier: RemoteTier) -> TieredStore:
    """Return a store over a tier, with memory of its own."""
    return TieredStore(MemoryStore(shape()), (tier,))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_object_is_deleted_and_written_again(url: str, damage: str) -> None:
    """A damaged object is reported once and deleted. Its key can be written again."""
    put(url, FILE, DAMAGE[damage])
    tier = RemoteTier(url)
    store = store_over(tier)

    (fault,) = store.get(KEY).faults

    assert fault.startswith("remote: ")
    assert FILE.removesuffix(".safetensors") in fault
    assert store.get(KEY).faults == ()
    assert names(url) == []
    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])
    found = read(tier, KEY)
    assert found is not None
    assert content(found) == content(ONE)


def test_a_damaged_object_that_cannot_be_deleted_is_not_listed(failing: type[FailingFiles]) -> None:
    """A damaged object under a read-only URL does not count as stored until a good one replaces it."""
    url = "failing://read-only"
    put(url, FILE, b"x" * 1000)
    store = store_over(RemoteTier(url))
    failing.fail_on, failing.before = frozenset({"rm_file", "pipe_file"}), refuse

    assert "is truncated, or no encoding" in store.get(KEY).faults[0]
    assert list(store.keys()) == []
    assert store.lacking([KEY]) == {url: {KEY}}
    failing.fail_on = frozenset()
    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])

    assert store.lacking([KEY]) == {}
    assert read(RemoteTier(url), KEY) is not None


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: os.truncate(path, 2**40)], ids=["folder", "huge"])
def test_what_cannot_be_fetched_is_damage(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """A folder with the name of a key, and a huge file, are faults and are not fetched."""
    if make is not Path.mkdir:
        (tmp_path / FILE).touch()
    make(tmp_path / FILE)

    assert "is not a file of at most" in store_over(RemoteTier(f"file://{tmp_path}")).get(KEY).faults[0]


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
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: now[-1]))
    return now


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), OSError(113, "No route to host")], ids=repr)
def test_a_url_that_does_not_answer_is_connected_to_later(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that does not answer at first is accepted, reports the fault, and is connected to later."""
    monkeypatch.setattr(ConnectingFiles, "error", error)
    monkeypatch.setattr(ConnectingFiles, "store", {})
    now = _clock(monkeypatch)
    tier = RemoteTier("connecting://user:secret@host/kept", retry_after_s=2)

    with pytest.raises(
        TierUnavailable, match=r"^connecting://host/kept: cannot read: .*; it is tried again after 2 s$"
    ):
        read(tier, KEY)
    monkeypatch.setattr(ConnectingFiles, "error", None)
    now.append(3.0)

    assert read(tier, KEY) is None
    assert write(tier, ONE)


def test_connecting_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting has a timeout."""
    release = threading.Event()
    monkeypatch.setattr(ConnectingFiles, "wait", staticmethod(lambda: release.wait(20)))
    started = time.monotonic()
    tier = RemoteTier("connecting://host/kept", timeout_s=0.1)

    with pytest.raises(TierUnavailable, match="cannot read"):
        read(tier, KEY)
    assert time.monotonic() - started < 10
    release.set()


@pytest.mark.parametrize(
    "error",
    [BackendError("530 login incorrect"), FileNotFoundError(2, "No such file"), TypeError("no such option")],
    ids=repr,
)
def test_a_wrong_url_is_refused_at_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong URL or option is refused at once, with the message of its library."""
    monkeypatch.setattr(ConnectingFiles, "error", error)

    with pytest.raises(StoreError, match="cannot use this URL as a store: ") as caught:
        RemoteTier("connecting://host/kept")
    assert str(error) in str(caught.value)


@pytest.mark.parametrize("path", ["plain", "plain/kept"])
def test_a_file_is_refused_as_a_folder(tmp_path: Path, path: str) -> None:
    """A URL of a file, or of a folder in a file, is refused at once. A folder that is missing is not."""
    (tmp_path / "plain").touch()

    with pytest.raises(StoreError, match="cannot use this URL as a store: "):
        RemoteTier(f"file://{tmp_path}/{path}")
    assert list(RemoteTier(f"file://{tmp_path}/missing").keys()) == []


def test_an_object_store_is_not_asked_at_the_start(failing: type[FailingFiles]) -> None:
    """Rights to read and write objects suffice, without the right to ask for a folder."""
    failing.fail_on, failing.before = frozenset({"info", "ls"}), refuse
    tier = RemoteTier("failing://kept")
    failing.fail_on = frozenset()
    assert write(tier, ONE)


def stored_in(tier: RemoteTier, count: int) -> list[str]:
    """Write `count` encodings and return their keys."""
    made = [small(f"number {number}") for number in range(count)]
    for each in made:
        write(tier, each)
    return [each.recipe.key for each in made]


def test_encodings_are_fetched_in_parallel(failing: type[FailingFiles]) -> None:
    """Several encodings are fetched in parallel."""
    keys = stored_in(RemoteTier("failing://parallel"), 8)
    together = threading.Barrier(8, timeout=20)
    store = TieredStore(MemoryStore(shape()), (RemoteTier("failing://parallel", timeout_s=30),))
    failing.fail_on, failing.before = frozenset({"info"}), together.wait

    found = store.get_many(keys)

    assert list(found) == keys
    assert all(
        lookup.handle is not None and lookup.tier is Tier.REMOTE and not lookup.faults for lookup in found.values()
    )


def test_a_fault_affects_its_own_lookup_only(failing: type[FailingFiles]) -> None:
    """Of encodings fetched in parallel, only the damaged one is a miss, and only its lookup has a fault."""
    keys = stored_in(RemoteTier("failing://parallel"), 20)
    put("failing://parallel", f"{keys[7]}.safetensors", b"x" * 1000)
    found = TieredStore(MemoryStore(shape()), (RemoteTier("failing://parallel"),)).get_many(keys)

    assert [number for number, key in enumerate(keys) if found[key].handle is None] == [7]
    assert [number for number, key in enumerate(keys) if found[key].faults] == [7]


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
    """A file system that is not thread-safe is used by one thread at a time."""
    tier = RemoteTier("single://x")
    keys = stored_in(tier, 6)
    stores = [TieredStore(MemoryStore(shape()), (tier,)) for _ in range(3)]
    SingleConnection.most = 0
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda store: store.get_many(keys), stores))

    assert SingleConnection.most == 1
    assert all(lookup.handle is not None for each in found for lookup in each.values())


def refuse() -> None:
    """Fail like a read-only URL."""
    raise PermissionError("no such right")


def test_operations_have_a_timeout(failing: type[FailingFiles], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a timeout there is a typed error, and the URL is not used for a while."""
    release = threading.Event()
    now = _clock(monkeypatch)
    tier = RemoteTier("failing://slow", timeout_s=1, retry_after_s=2)
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
    """Any error of a backend becomes `TierUnavailable` with the URL, the operation and the reason."""
    tier = RemoteTier("failing://odd")

    def fail() -> None:
        raise error

    failing.fail_on, failing.before = frozenset({"info", "pipe_file"}), fail
    for what, ask in (("read", lambda: read(tier, KEY)), ("write", lambda: write(tier, ONE))):
        with pytest.raises(TierUnavailable, match=f"^failing://odd: cannot {what}: lost$") as caught:
            ask()
        assert caught.value.__cause__ is error


def test_writes_are_atomic(url: str) -> None:
    """At every step of a write, the object is either missing or complete."""
    seen: set[int] = set()
    size = file_bytes(ONE)
    files, root = fsspec.core.url_to_fs(url)

    def look(_: FrameType, event: str, __: object) -> None:
        if event not in ("c_return", "return"):
            return
        if url.startswith("file://"):
            path = Path(root, FILE)
            seen.add(path.stat().st_size if os.path.lexists(path) else -1)
        else:
            entry = files.store.get(f"{root}/{FILE}")
            seen.add(len(entry.getvalue()) if entry is not None else -1)

    threading.setprofile(look)
    try:
        write(RemoteTier(url), ONE)
    finally:
        threading.setprofile(None)
        sys.setprofile(None)

    assert seen == {-1, size}


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed rename leaves no temporary file."""
    tier = RemoteTier(f"file://{tmp_path}")
    monkeypatch.setattr("shutil.move", lambda *_: refuse())

    with pytest.raises(TierUnavailable, match="cannot write: no such right"):
        write(tier, ONE)

    assert [path.name for path in tmp_path.rglob("*")] == ["incoming"]


def test_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    """A write removes files in `incoming/` that are older than an hour; younger and foreign ones stay."""
    (tmp_path / "incoming").mkdir()
    now_ns = time.time_ns()
    old, young = (f"{FILE}.7.{now_ns - minutes * 60 * 10**9}.tmp" for minutes in (61, 59))
    for name in (old, young, "notes.txt"):
        (tmp_path / "incoming" / name).touch()

    write(RemoteTier(f"file://{tmp_path}"), ONE)

    assert {path.name for path in (tmp_path / "incoming").iterdir()} == {young, "notes.txt"}


@pytest.mark.parametrize("bad", ["nowhere://x", "no-such-protocol-at-all://bucket"])
def test_an_unknown_protocol_is_refused(bad: str) -> None:
    """A URL of an unknown protocol is refused at once."""
    with pytest.raises(StoreError, match="cannot use this URL as a store"):
        RemoteTier(bad)


@pytest.mark.parametrize("key", ["", "../x", "A" * 64])
def test_text_that_is_not_a_key_is_refused(url: str, key: str) -> None:
    """Text that is not a key raises `StoreError`."""
    with pytest.raises(StoreError, match="a key, 64 hexadecimal digits, is expected"):
        read(RemoteTier(url), key)


NAMES = "abcd"
ALL = {name: small(name, 1 + index) for index, name in enumerate(NAMES)}


class Agreement(RuleBasedStateMachine):
    """Two machines with one URL, and a dict."""

    def __init__(self) -> None:
        super().__init__()
        MemoryFileSystem.store.clear()
        self.tiers = [RemoteTier("memory://agreement") for _ in range(2)]
        self.expected: dict[str, bool] = {}  # whether the object is complete

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def write(self, which: int, name: str) -> None:
        """Write an encoding; a stored one stays."""
        assert write(self.tiers[which], ALL[name])
        self.expected.setdefault(name, True)

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def delete(self, which: int, name: str) -> None:
        """Delete an encoding."""
        self.tiers[which].delete(ALL[name].recipe.key)
        self.expected.pop(name, None)

    @rule(name=st.sampled_from(NAMES), data=st.binary(max_size=9))
    def damage(self, name: str, data: bytes) -> None:
        """Replace an object by random bytes."""
        put("memory://agreement", f"{ALL[name].recipe.key}.safetensors", data)
        self.expected[name] = False

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def read(self, which: int, name: str) -> None:
        """Read: the result is what was written, or an error if the object was damaged."""
        whole = self.expected.get(name)
        try:
            found = read(self.tiers[which], ALL[name].recipe.key)
        except CorruptEncoding:
            assert whole is False
            self.delete(which, name)  # as a store does
            return
        assert (found is not None) == (whole is True)
        assert found is None or content(found) == content(ALL[name])

    @invariant()
    def agrees(self) -> None:
        """Both machines list the same keys."""
        for tier in self.tiers:
            assert set(tier.keys()) == {ALL[name].recipe.key for name in self.expected}


Agreement.TestCase.settings = settings(max_examples=law_examples(0.1), stateful_step_count=20)
TestAgreement = pytest.mark.law(Agreement.TestCase)
