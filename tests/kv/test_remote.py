"""A remote tier returns what was written, bit for bit, or raises a typed error in time."""

from __future__ import annotations

import errno
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
from fsspec.implementations.local import LocalFileOpener
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv import BlobTier, MemoryStore, Tier, TieredStore
from promptcache.kv.files import remote
from promptcache.kv.files.remote import RemoteTier
from tests.conftest import law_examples
from tests.kv.stored import content, file_bytes, shape, small, whole_file

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

    def cp_file(self, path1: str, path2: str, **named: object) -> None:
        self._answer("cp_file")
        return super().cp_file(path1, path2, **named)


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
    assert RemoteTier(url).write(ONE)
    later = RemoteTier(url)

    found = later.read(KEY)

    assert found is not None
    assert content(found) == content(ONE)
    assert list(later.keys()) == [KEY]
    assert later.nbytes() == file_bytes(ONE)
    files, root = fsspec.core.url_to_fs(url)
    assert files.cat_file(f"{root}/{FILE}") == whole_file(ONE)
    assert names(url) == [FILE]


def test_missing_encodings_are_misses(url: str) -> None:
    """An empty URL has no encodings, and every query returns that."""
    tier = RemoteTier(url)

    assert tier.read(KEY) is None
    assert list(tier.keys()) == []
    assert tier.nbytes() == 0
    assert not tier.delete(KEY)


def test_the_first_object_stays_until_it_is_deleted(url: str) -> None:
    """Writing a key again keeps the first object, and deleting removes it."""
    tier = RemoteTier(url)
    tier.write(ONE)
    tier.write(small("one", seed=1))
    found = tier.read(KEY)

    assert found is not None
    assert content(found) == content(ONE)
    assert tier.delete(KEY)
    assert not tier.delete(KEY)
    assert tier.read(KEY) is None


DAMAGE = {
    "truncated": whole_file(ONE)[:-1],
    "empty": b"",
    "longer": whole_file(ONE) + b"\0",
    "flipped": whole_file(ONE)[:-1] + bytes([whole_file(ONE)[-1] ^ 1]),
    "foreign": b"x" * 1000,
    "another encoding": whole_file(small("two")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_corrupt_files_are_moved_to_quarantine_once(url: str, damage: str) -> None:
    """A corrupt object is moved to quarantine, with the reason beside it."""
    put(url, FILE, DAMAGE[damage])
    tier = RemoteTier(url)

    with pytest.raises(CorruptEncoding, match=FILE) as error:
        tier.read(KEY)

    assert tier.read(KEY) is None
    bad, reason = names(url, "/quarantine")
    files, root = fsspec.core.url_to_fs(url)
    assert files.cat_file(f"{root}/quarantine/{bad}") == DAMAGE[damage]
    assert files.cat_file(f"{root}/quarantine/{reason}").decode() == str(error.value)
    assert tier.write(ONE)
    found = tier.read(KEY)
    assert found is not None
    assert content(found) == content(ONE)


def test_a_folder_with_the_name_of_a_key_is_moved_to_quarantine(tmp_path: Path) -> None:
    """A folder with the name of a key is moved to quarantine, and the key can be written."""
    (tmp_path / FILE).mkdir()
    (tmp_path / FILE / "x").touch()
    tier = RemoteTier(f"file://{tmp_path}")

    with pytest.raises(CorruptEncoding, match="is not a file"):
        tier.read(KEY)

    assert tier.write(ONE)
    assert tier.read(KEY) is not None


def test_objects_that_cannot_be_moved_are_ignored(failing: type[FailingFiles]) -> None:
    """A corrupt object under a read-only URL is reported once; a new object is read again."""
    url = "failing://read-only"
    put(url, FILE, b"x" * 1000)
    tier = RemoteTier(url)
    failing.fail_on, failing.before = frozenset({"cp_file", "pipe_file"}), refuse
    with pytest.raises(CorruptEncoding) as error:
        tier.read(KEY)

    assert "could not be moved to quarantine" in error.value.__notes__[0]
    assert tier.read(KEY) is None
    with pytest.raises(TierUnavailable, match="cannot write: no such right"):
        tier.write(ONE)
    failing.fail_on = frozenset()
    assert tier.write(ONE)
    assert tier.read(KEY) is not None
    failing.fail_on = frozenset({"pipe_file"})
    assert tier.write(ONE)  # a complete object is not written again


def test_corrupt_files_that_cannot_be_moved_are_not_listed(failing: type[FailingFiles]) -> None:
    """A corrupt object that cannot be moved is not listed until a good one replaces it."""
    url = "failing://read-only"
    put(url, FILE, b"x" * 1000)
    tier = RemoteTier(url)
    failing.fail_on, failing.before = frozenset({"cp_file", "pipe_file"}), refuse
    with pytest.raises(CorruptEncoding):
        tier.read(KEY)

    assert list(tier.keys()) == []
    failing.fail_on = frozenset()
    put(url, FILE, whole_file(ONE))
    assert tier.read(KEY) is not None
    assert list(tier.keys()) == [KEY]


def test_kv_of_another_shape_is_moved_to_quarantine(url: str) -> None:
    """An object with another shape than the requested one is moved to quarantine."""
    tier = RemoteTier(url)
    tier.write(ONE)
    assert tier.read(KEY, shape()) is not None

    with pytest.raises(CorruptEncoding, match="this model's is float32"):
        tier.read(KEY, shape(head_dim=16))

    assert tier.read(KEY) is None
    assert len(names(url, "/quarantine")) == 2


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
        tier.read(KEY)
    monkeypatch.setattr(ConnectingFiles, "error", None)
    now.append(3.0)

    assert tier.read(KEY) is None
    assert tier.write(ONE)


def test_connecting_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting has a timeout."""
    release = threading.Event()
    monkeypatch.setattr(ConnectingFiles, "wait", staticmethod(lambda: release.wait(20)))
    started = time.monotonic()
    tier = RemoteTier("connecting://host/kept", timeout_s=0.1)

    with pytest.raises(TierUnavailable, match="cannot read"):
        tier.read(KEY)
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
    assert tier.write(ONE)


def stored_in(tier: RemoteTier, count: int) -> list[str]:
    """Write `count` encodings and return their keys."""
    made = [small(f"number {number}") for number in range(count)]
    for each in made:
        tier.write(each)
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


def test_a_replaced_object_is_not_moved_to_quarantine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that another machine replaced meanwhile is not moved to quarantine."""
    put(url, FILE, b"x" * 1000)
    tier = RemoteTier(url)
    move = remote._move_to_quarantine

    def too_late(*found: object) -> None:
        put(url, FILE, whole_file(ONE))
        move(*found)  # type: ignore[arg-type]

    monkeypatch.setattr(remote, "_move_to_quarantine", too_late)
    with pytest.raises(CorruptEncoding):
        tier.read(KEY)

    assert tier.read(KEY) is not None
    assert names(url, "/quarantine") == []


def test_operations_have_a_timeout(failing: type[FailingFiles], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a timeout there is a typed error, and the URL is not used for a while."""
    release = threading.Event()
    now = _clock(monkeypatch)
    tier = RemoteTier("failing://slow", timeout_s=1, retry_after_s=2)
    failing.fail_on, failing.before = frozenset({"info"}), lambda: release.wait(20)
    started = time.monotonic()

    with pytest.raises(TierUnavailable, match=r"^failing://slow: cannot read: no answer within 1 s$"):
        tier.read(KEY)
    assert time.monotonic() - started < 10
    for ask in (lambda: tier.read(KEY), lambda: tier.write(ONE), lambda: list(tier.keys())):
        with pytest.raises(TierUnavailable, match=r"it is tried again after 2 s"):
            ask()

    release.set()
    failing.fail_on = frozenset()
    now.append(3.0)
    assert tier.write(ONE)
    assert tier.read(KEY) is not None


@pytest.mark.parametrize("error", [BackendError("lost"), ConnectionError("lost"), ValueError("lost")], ids=repr)
def test_errors_of_backends_become_one_type(failing: type[FailingFiles], error: Exception) -> None:
    """Any error of a backend becomes `TierUnavailable` with the URL, the operation and the reason."""
    tier = RemoteTier("failing://odd")

    def fail() -> None:
        raise error

    failing.fail_on, failing.before = frozenset({"info", "pipe_file"}), fail
    for what, ask in (("read", lambda: tier.read(KEY)), ("write", lambda: tier.write(ONE))):
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
        RemoteTier(url).write(ONE)
    finally:
        threading.setprofile(None)
        sys.setprofile(None)

    assert seen == {-1, size}


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed rename leaves no temporary file."""
    tier = RemoteTier(f"file://{tmp_path}")
    monkeypatch.setattr(Path, "replace", lambda *_: refuse())

    with pytest.raises(TierUnavailable, match="cannot write: no such right"):
        tier.write(ONE)

    assert [path.name for path in tmp_path.rglob("*")] == ["incoming"]


def test_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    """A write removes files in `incoming/` that are older than an hour; younger and foreign ones stay."""
    (tmp_path / "incoming").mkdir()
    now_ns = time.time_ns()
    old, young = (f"{FILE}.7.{now_ns - minutes * 60 * 10**9}.tmp" for minutes in (61, 59))
    for name in (old, young, "notes.txt"):
        (tmp_path / "incoming" / name).touch()

    RemoteTier(f"file://{tmp_path}").write(ONE)

    assert {path.name for path in (tmp_path / "incoming").iterdir()} == {young, "notes.txt"}


def test_a_full_disk_leaves_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that finds no room on the disk is a fault and leaves no empty file, which others would wait for."""
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileOpener, "write", full)
        with pytest.raises(TierUnavailable, match="No space left"), RemoteTier(f"file://{tmp_path}").claim(KEY, 5):
            pass

    assert list((tmp_path / "claims").iterdir()) == []
    with RemoteTier(f"file://{tmp_path}").claim(KEY, 0) as held:
        assert held


def test_a_renewal_writes_to_no_file_outside(tmp_path: Path) -> None:
    """A claim that another program replaces by a link is renewed in its place, and the target of the link stays."""
    (tmp_path / "precious").write_bytes(b"precious")
    claim = tmp_path / "tier" / "claims" / KEY
    with RemoteTier(f"file://{tmp_path}/tier", lease_s=0.4).claim(KEY, 5) as held:
        assert held
        claim.unlink()
        claim.symlink_to(tmp_path / "precious")
        time.sleep(0.3)
        assert not claim.is_symlink()

    assert (tmp_path / "precious").read_bytes() == b"precious"


def full(*_: object) -> None:
    """Fail like a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("bad", ["nowhere://x", "no-such-protocol-at-all://bucket"])
def test_an_unknown_protocol_is_refused(bad: str) -> None:
    """A URL of an unknown protocol is refused at once."""
    with pytest.raises(StoreError, match="cannot use this URL as a store"):
        RemoteTier(bad)


@pytest.mark.parametrize("key", ["", "../x", "A" * 64])
def test_text_that_is_not_a_key_is_refused(url: str, key: str) -> None:
    """Text that is not a key raises `StoreError`."""
    with pytest.raises(StoreError, match="a key, 64 hexadecimal digits, is expected"):
        RemoteTier(url).read(key)


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
        assert self.tiers[which].write(ALL[name])
        self.expected.setdefault(name, True)

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def delete(self, which: int, name: str) -> None:
        """Delete an encoding."""
        assert self.tiers[which].delete(ALL[name].recipe.key) == (self.expected.pop(name, None) is not None)

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
            found = self.tiers[which].read(ALL[name].recipe.key)
        except CorruptEncoding:
            assert whole is False
            del self.expected[name]
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
