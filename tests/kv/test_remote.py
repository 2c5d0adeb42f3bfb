"""A URL gives back what was put there, to the last bit, or says in time that it cannot."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv import Shelf, Tier
from promptcache.kv.remote import RemoteShelf
from tests.conftest import law_examples
from tests.kv.resting import content, file_bytes, shape, small, whole_file

ONE = small("one")
KEY = ONE.recipe.key
FILE = f"{KEY}.safetensors"


class Odd(Exception):
    """An error of some library's own."""


class Unwell(MemoryFileSystem):
    """A place whose every answer can be spoiled by a test."""

    protocol = ("unwell",)
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


fsspec.register_implementation("unwell", Unwell, clobber=True)


@pytest.fixture
def unwell() -> Iterator[type[Unwell]]:
    """The place that can be spoiled, well and empty."""
    yield Unwell
    Unwell.fail_on, Unwell.before = frozenset(), staticmethod(lambda: None)
    Unwell.store.clear()
    Unwell.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "file", "unwell"])
def url(request: pytest.FixtureRequest, tmp_path: Path, unwell: type[Unwell]) -> Iterator[str]:
    """An empty place that nobody else knows."""
    yield f"{request.param}://{tmp_path}/shared"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def put(url: str, name: str, data: bytes) -> None:
    """Put bytes there, as whoever knows nothing of shelves would."""
    files, root = fsspec.core.url_to_fs(url)
    files.makedirs(root, exist_ok=True)
    files.pipe_file(f"{root}/{name}", data)


def names(url: str, folder: str = "") -> list[str]:
    """What is there."""
    files, root = fsspec.core.url_to_fs(url)
    if not files.exists(root + folder):
        return []
    return sorted(path.rpartition("/")[2] for path in files.ls(root + folder, detail=False) if files.isfile(path))


def test_the_remote_shelf_is_a_shelf(url: str) -> None:
    """It has every method of the protocol."""
    assert isinstance(RemoteShelf(url), Shelf)
    assert RemoteShelf(url).tier is Tier.REMOTE


def test_what_is_put_is_read_by_another_machine(url: str) -> None:
    """Another shelf at the same URL gives the same encoding, bit for bit, from the bytes that the format prescribes."""
    assert RemoteShelf(url).write(ONE)
    later = RemoteShelf(url)

    found = later.read(KEY)

    assert found is not None
    assert content(found) == content(ONE)
    assert list(later.keys()) == [KEY]
    assert later.nbytes() == file_bytes(ONE)
    files, root = fsspec.core.url_to_fs(url)
    assert files.cat_file(f"{root}/{FILE}") == whole_file(ONE)
    assert names(url) == [FILE]


def test_what_is_not_there_is_none(url: str) -> None:
    """An empty place holds nothing."""
    shelf = RemoteShelf(url)

    assert shelf.read(KEY) is None
    assert list(shelf.keys()) == []
    assert shelf.nbytes() == 0
    assert not shelf.delete(KEY)
    assert shelf.gc() == ()


def test_what_is_there_stays_until_it_is_deleted(url: str) -> None:
    """Writing a key again changes nothing; deleting it takes it away."""
    shelf = RemoteShelf(url)
    shelf.write(ONE)
    shelf.write(small("one", seed=1))
    found = shelf.read(KEY)

    assert found is not None
    assert content(found) == content(ONE)
    assert shelf.delete(KEY)
    assert not shelf.delete(KEY)
    assert shelf.read(KEY) is None


def test_nothing_is_evicted_so_pins_have_nothing_to_do(url: str) -> None:
    """Pins and claims can be asked for, and promise nothing."""
    shelf = RemoteShelf(url)
    shelf.pin(KEY)
    shelf.unpin(KEY)

    assert shelf.pinned() == frozenset()
    with shelf.claim(KEY, 0) as held:
        assert not held


DAMAGE = {
    "truncated": whole_file(ONE)[:-1],
    "empty": b"",
    "longer": whole_file(ONE) + b"\0",
    "flipped": whole_file(ONE)[:-1] + bytes([whole_file(ONE)[-1] ^ 1]),
    "foreign": b"x" * 1000,
    "another encoding": whole_file(small("two")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_set_aside_once(url: str, damage: str) -> None:
    """What is not what its name promises is never served: it is moved away, with the reason beside it."""
    put(url, FILE, DAMAGE[damage])
    shelf = RemoteShelf(url)

    with pytest.raises(CorruptEncoding, match=FILE) as error:
        shelf.read(KEY)

    assert shelf.read(KEY) is None
    bad, reason = names(url, "/quarantine")
    files, root = fsspec.core.url_to_fs(url)
    assert files.cat_file(f"{root}/quarantine/{bad}") == DAMAGE[damage]
    assert files.cat_file(f"{root}/quarantine/{reason}").decode() == str(error.value)
    assert shelf.write(ONE)
    found = shelf.read(KEY)
    assert found is not None
    assert content(found) == content(ONE)


def test_a_folder_with_the_name_of_a_key_is_set_aside(tmp_path: Path) -> None:
    """It is no encoding, and must not be in the way of one."""
    (tmp_path / FILE).mkdir()
    (tmp_path / FILE / "x").touch()
    shelf = RemoteShelf(f"file://{tmp_path}")

    with pytest.raises(CorruptEncoding, match="is not a file"):
        shelf.read(KEY)

    assert shelf.write(ONE)
    assert shelf.read(KEY) is not None


def test_what_cannot_be_set_aside_is_ignored(unwell: type[Unwell]) -> None:
    """A place that may only be read: the damage is told once, and a new object is believed again."""
    url = "unwell://read-only"
    put(url, FILE, b"x" * 1000)
    shelf = RemoteShelf(url)
    unwell.fail_on, unwell.before = frozenset({"cp_file", "pipe_file"}), refuse
    with pytest.raises(CorruptEncoding) as error:
        shelf.read(KEY)

    assert "could not be set aside" in error.value.__notes__[0]
    assert shelf.read(KEY) is None
    with pytest.raises(TierUnavailable, match="cannot write: no such right"):
        shelf.write(ONE)
    unwell.fail_on = frozenset()
    assert shelf.write(ONE)
    assert shelf.read(KEY) is not None
    unwell.fail_on = frozenset({"pipe_file"})
    assert shelf.write(ONE)  # it is whole again, and not put once more


def test_what_is_ignored_is_no_key(unwell: type[Unwell]) -> None:
    """A bad object that cannot be set aside is not among the keys, until a good one is read in its place."""
    url = "unwell://read-only"
    put(url, FILE, b"x" * 1000)
    shelf = RemoteShelf(url)
    unwell.fail_on, unwell.before = frozenset({"cp_file", "pipe_file"}), refuse
    with pytest.raises(CorruptEncoding):
        shelf.read(KEY)

    assert list(shelf.keys()) == []
    unwell.fail_on = frozenset()
    put(url, FILE, whole_file(ONE))
    assert shelf.read(KEY) is not None
    assert list(shelf.keys()) == [KEY]


def test_kv_of_another_shape_is_set_aside(url: str) -> None:
    """A reader that says which shape it can use gets no other."""
    shelf = RemoteShelf(url)
    shelf.write(ONE)
    assert shelf.read(KEY, shape()) is not None

    with pytest.raises(CorruptEncoding, match="this model's is float32"):
        shelf.read(KEY, shape(head_dim=16))

    assert shelf.read(KEY) is None
    assert len(names(url, "/quarantine")) == 2


class Dialled(MemoryFileSystem):
    """A place that is connected to when it is opened, as ftp is."""

    protocol = ("dialled",)
    store: dict = {}  # noqa: RUF012 - as its parent keeps it
    pseudo_dirs = [""]  # noqa: RUF012
    error: Exception | None = None
    wait = staticmethod(lambda: None)

    def __init__(self, *args: object, **named: object) -> None:
        type(self).wait()
        if type(self).error is not None:
            raise type(self).error
        super().__init__(*args, **named)


fsspec.register_implementation("dialled", Dialled, clobber=True)


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), OSError(113, "No route to host")], ids=repr)
def test_a_place_is_connected_to_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing answers at first the shelf is there all the same: it says so when asked, and connects later."""
    monkeypatch.setattr(Dialled, "error", error)
    monkeypatch.setattr(Dialled, "store", {})
    shelf = RemoteShelf("dialled://user:secret@host/kept", rest_s=0.2)

    with pytest.raises(TierUnavailable, match=r"^dialled://host/kept: cannot read: .*; it is not asked for 0\.2 s$"):
        shelf.read(KEY)
    monkeypatch.setattr(Dialled, "error", None)
    time.sleep(0.3)

    assert shelf.read(KEY) is None
    assert shelf.write(ONE)


def test_connecting_has_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that takes for ever to connect to is left after the time-out."""
    release = threading.Event()
    monkeypatch.setattr(Dialled, "wait", staticmethod(lambda: release.wait(20)))
    started = time.monotonic()
    shelf = RemoteShelf("dialled://host/kept", timeout_s=0.1)

    with pytest.raises(TierUnavailable, match="cannot read"):
        shelf.read(KEY)
    assert time.monotonic() - started < 10
    release.set()


@pytest.mark.parametrize(
    "error", [Odd("530 login incorrect"), FileNotFoundError(2, "No such file"), TypeError("no such option")], ids=repr
)
def test_what_cannot_be_opened_is_refused_at_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the URL or its options is said when the shelf is made, in the words of its library."""
    monkeypatch.setattr(Dialled, "error", error)

    with pytest.raises(StoreError, match="cannot use this URL as a store: ") as told:
        RemoteShelf("dialled://host/kept")
    assert str(error) in str(told.value)


def refuse() -> None:
    """As a place that one may not write to."""
    raise PermissionError("no such right")


def test_what_another_machine_put_there_meanwhile_stays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was found bad is moved away."""
    put(url, FILE, b"x" * 1000)
    shelf = RemoteShelf(url)
    move_bad = shelf._move_bad

    def too_late(*found: object) -> None:
        put(url, FILE, whole_file(ONE))
        move_bad(*found)  # type: ignore[arg-type]

    monkeypatch.setattr(shelf, "_move_bad", too_late)
    with pytest.raises(CorruptEncoding):
        shelf.read(KEY)

    assert shelf.read(KEY) is not None
    assert names(url, "/quarantine") == []


def test_a_place_that_does_not_answer_is_left_in_time(unwell: type[Unwell]) -> None:
    """Nobody hangs: after the time-out there is a typed error, and for a while the place is not even asked."""
    release = threading.Event()
    shelf = RemoteShelf("unwell://slow", timeout_s=0.1, rest_s=0.4)
    unwell.fail_on, unwell.before = frozenset({"info"}), lambda: release.wait(20)
    started = time.monotonic()

    with pytest.raises(TierUnavailable, match=r"^unwell://slow: cannot read: no answer within 0\.1 s$"):
        shelf.read(KEY)
    assert time.monotonic() - started < 10
    for ask in (lambda: shelf.read(KEY), lambda: shelf.write(ONE), lambda: list(shelf.keys())):
        with pytest.raises(TierUnavailable, match=r"is not asked for 0\.4 s"):
            ask()

    release.set()
    unwell.fail_on = frozenset()
    time.sleep(0.5)
    assert shelf.write(ONE)
    assert shelf.read(KEY) is not None


@pytest.mark.parametrize("error", [Odd("lost"), ConnectionError("lost"), ValueError("lost")], ids=repr)
def test_whatever_a_backend_raises_is_told_as_one_kind(unwell: type[Unwell], error: Exception) -> None:
    """Backends raise errors of their own; the shelf says which place failed at what, and why."""
    shelf = RemoteShelf("unwell://odd")

    def fail() -> None:
        raise error

    unwell.fail_on, unwell.before = frozenset({"info", "pipe_file"}), fail
    for what, ask in (("read", lambda: shelf.read(KEY)), ("write", lambda: shelf.write(ONE))):
        with pytest.raises(TierUnavailable, match=f"^unwell://odd: cannot {what}: lost$") as told:
            ask()
        assert told.value.__cause__ is error


def test_no_object_is_ever_half_there(url: str) -> None:
    """At no step of a write does the final name have fewer bytes than in the end."""
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
        RemoteShelf(url).write(ONE)
    finally:
        threading.setprofile(None)
        sys.setprofile(None)

    assert seen == {-1, size}


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file cannot get its name, its temporary file goes, too."""
    shelf = RemoteShelf(f"file://{tmp_path}")
    monkeypatch.setattr(type(shelf._files), "mv", lambda *_, **__: refuse())

    with pytest.raises(TierUnavailable, match="cannot write: no such right"):
        shelf.write(ONE)

    assert [path.name for path in tmp_path.rglob("*")] == ["incoming"]


def test_old_temporary_files_are_collected(tmp_path: Path) -> None:
    """What killed writers left goes after a day; what may still be being written, and foreign files, stay."""
    shelf = RemoteShelf(f"file://{tmp_path}")
    now, long_ago = time.time_ns(), time.time_ns() - 2 * 86_400 * 10**9
    (tmp_path / "incoming").mkdir()
    old, new = (f"{FILE}.77.{stamp}.tmp" for stamp in (long_ago, now))
    for name in (old, new, "notes.txt"):
        (tmp_path / "incoming" / name).touch()

    assert shelf.gc() == (old,)

    assert sorted(path.name for path in (tmp_path / "incoming").iterdir()) == sorted([new, "notes.txt"])


@pytest.mark.parametrize("bad", ["nowhere://x", "no-such-protocol-at-all://bucket"])
def test_a_url_that_nobody_knows_is_refused(bad: str) -> None:
    """What no file system is installed for is told at once."""
    with pytest.raises(StoreError, match="cannot use this URL as a store"):
        RemoteShelf(bad)


@pytest.mark.parametrize("key", ["", "../x", "A" * 64])
def test_only_keys_are_names(url: str, key: str) -> None:
    """No text leads to another object."""
    with pytest.raises(StoreError, match="is not a key"):
        RemoteShelf(url).read(key)


NAMES = "abcd"
ALL = {name: small(name, 1 + index) for index, name in enumerate(NAMES)}


class Agreement(RuleBasedStateMachine):
    """Two machines with one remote place, and a dict."""

    def __init__(self) -> None:
        super().__init__()
        MemoryFileSystem.store.clear()
        self.shelves = [RemoteShelf("memory://agreement") for _ in range(2)]
        self.expected: dict[str, bool] = {}  # whether it is whole

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def write(self, which: int, name: str) -> None:
        """Write; what is there stays."""
        assert self.shelves[which].write(ALL[name])
        self.expected.setdefault(name, True)

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def delete(self, which: int, name: str) -> None:
        """Delete."""
        assert self.shelves[which].delete(ALL[name].recipe.key) == (self.expected.pop(name, None) is not None)

    @rule(name=st.sampled_from(NAMES), data=st.binary(max_size=9))
    def damage(self, name: str, data: bytes) -> None:
        """Put nonsense there."""
        put("memory://agreement", f"{ALL[name].recipe.key}.safetensors", data)
        self.expected[name] = False

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def read(self, which: int, name: str) -> None:
        """What is read is what was written; damage is told to one of the machines."""
        whole = self.expected.get(name)
        try:
            found = self.shelves[which].read(ALL[name].recipe.key)
        except CorruptEncoding:
            assert whole is False
            del self.expected[name]
            return
        assert (found is not None) == (whole is True)
        assert found is None or content(found) == content(ALL[name])

    @invariant()
    def agrees(self) -> None:
        """Both see the same keys."""
        for shelf in self.shelves:
            assert set(shelf.keys()) == {ALL[name].recipe.key for name in self.expected}


Agreement.TestCase.settings = settings(max_examples=law_examples(0.1), stateful_step_count=20)
TestAgreement = pytest.mark.law(Agreement.TestCase)
