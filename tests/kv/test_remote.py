"""A URL gives back what was put there, to the last bit, or says in time that it cannot."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import fsspec
import pytest
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
    """Put bytes there, as whoever knows nothing of tiers would."""
    files, root = fsspec.core.url_to_fs(url)
    files.makedirs(root, exist_ok=True)
    files.pipe_file(f"{root}/{name}", data)


def names(url: str, folder: str = "") -> list[str]:
    """What is there."""
    files, root = fsspec.core.url_to_fs(url)
    if not files.exists(root + folder):
        return []
    return sorted(path.rpartition("/")[2] for path in files.ls(root + folder, detail=False) if files.isfile(path))


def test_the_remote_tier_is_a_tier(url: str) -> None:
    """It has every method of the protocol."""
    assert isinstance(RemoteTier(url), BlobTier)
    assert RemoteTier(url).kind is Tier.REMOTE


def test_what_is_put_is_read_by_another_machine(url: str) -> None:
    """Another tier at the same URL gives the same encoding, bit for bit, from the bytes that the format prescribes."""
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


def test_what_is_not_there_is_none(url: str) -> None:
    """An empty place holds nothing."""
    tier = RemoteTier(url)

    assert tier.read(KEY) is None
    assert list(tier.keys()) == []
    assert tier.nbytes() == 0
    assert not tier.delete(KEY)
    assert tier.gc() == ()


def test_what_is_there_stays_until_it_is_deleted(url: str) -> None:
    """Writing a key again changes nothing; deleting it takes it away."""
    tier = RemoteTier(url)
    tier.write(ONE)
    tier.write(small("one", seed=1))
    found = tier.read(KEY)

    assert found is not None
    assert content(found) == content(ONE)
    assert tier.delete(KEY)
    assert not tier.delete(KEY)
    assert tier.read(KEY) is None


def test_nothing_is_evicted_so_pins_have_nothing_to_do(url: str) -> None:
    """Pins and claims can be asked for, and promise nothing."""
    tier = RemoteTier(url)
    tier.pin(KEY)
    tier.unpin(KEY)

    assert tier.pinned() == frozenset()
    with tier.claim(KEY, 0) as held:
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


def test_a_folder_with_the_name_of_a_key_is_set_aside(tmp_path: Path) -> None:
    """It is no encoding, and must not be in the way of one."""
    (tmp_path / FILE).mkdir()
    (tmp_path / FILE / "x").touch()
    tier = RemoteTier(f"file://{tmp_path}")

    with pytest.raises(CorruptEncoding, match="is not a file"):
        tier.read(KEY)

    assert tier.write(ONE)
    assert tier.read(KEY) is not None


def test_what_cannot_be_set_aside_is_ignored(unwell: type[Unwell]) -> None:
    """A place that may only be read: the damage is told once, and a new object is believed again."""
    url = "unwell://read-only"
    put(url, FILE, b"x" * 1000)
    tier = RemoteTier(url)
    unwell.fail_on, unwell.before = frozenset({"cp_file", "pipe_file"}), refuse
    with pytest.raises(CorruptEncoding) as error:
        tier.read(KEY)

    assert "could not be set aside" in error.value.__notes__[0]
    assert tier.read(KEY) is None
    with pytest.raises(TierUnavailable, match="cannot write: no such right"):
        tier.write(ONE)
    unwell.fail_on = frozenset()
    assert tier.write(ONE)
    assert tier.read(KEY) is not None
    unwell.fail_on = frozenset({"pipe_file"})
    assert tier.write(ONE)  # it is whole again, and not put once more


def test_what_is_ignored_is_no_key(unwell: type[Unwell]) -> None:
    """A bad object that cannot be set aside is not among the keys, until a good one is read in its place."""
    url = "unwell://read-only"
    put(url, FILE, b"x" * 1000)
    tier = RemoteTier(url)
    unwell.fail_on, unwell.before = frozenset({"cp_file", "pipe_file"}), refuse
    with pytest.raises(CorruptEncoding):
        tier.read(KEY)

    assert list(tier.keys()) == []
    unwell.fail_on = frozenset()
    put(url, FILE, whole_file(ONE))
    assert tier.read(KEY) is not None
    assert list(tier.keys()) == [KEY]


def test_kv_of_another_shape_is_set_aside(url: str) -> None:
    """A reader that says which shape it can use gets no other."""
    tier = RemoteTier(url)
    tier.write(ONE)
    assert tier.read(KEY, shape()) is not None

    with pytest.raises(CorruptEncoding, match="this model's is float32"):
        tier.read(KEY, shape(head_dim=16))

    assert tier.read(KEY) is None
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
    """Where nothing answers at first the tier is there all the same: it says so when asked, and connects later."""
    monkeypatch.setattr(Dialled, "error", error)
    monkeypatch.setattr(Dialled, "store", {})
    tier = RemoteTier("dialled://user:secret@host/kept", rest_s=0.2)

    with pytest.raises(TierUnavailable, match=r"^dialled://host/kept: cannot read: .*; it is not asked for 0\.2 s$"):
        tier.read(KEY)
    monkeypatch.setattr(Dialled, "error", None)
    time.sleep(0.3)

    assert tier.read(KEY) is None
    assert tier.write(ONE)


def test_connecting_has_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that takes for ever to connect to is left after the time-out."""
    release = threading.Event()
    monkeypatch.setattr(Dialled, "wait", staticmethod(lambda: release.wait(20)))
    started = time.monotonic()
    tier = RemoteTier("dialled://host/kept", timeout_s=0.1)

    with pytest.raises(TierUnavailable, match="cannot read"):
        tier.read(KEY)
    assert time.monotonic() - started < 10
    release.set()


@pytest.mark.parametrize(
    "error", [Odd("530 login incorrect"), FileNotFoundError(2, "No such file"), TypeError("no such option")], ids=repr
)
def test_what_cannot_be_opened_is_refused_at_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the URL or its options is said when the tier is made, in the words of its library."""
    monkeypatch.setattr(Dialled, "error", error)

    with pytest.raises(StoreError, match="cannot use this URL as a store: ") as told:
        RemoteTier("dialled://host/kept")
    assert str(error) in str(told.value)


def stored_in(tier: RemoteTier, count: int) -> list[str]:
    """Write so many encodings and return their keys."""
    made = [small(f"number {number}") for number in range(count)]
    for each in made:
        tier.write(each)
    return [each.recipe.key for each in made]


def test_several_are_fetched_at_once(unwell: type[Unwell]) -> None:
    """A store asks a URL for several encodings in parallel: none comes back before all were asked for."""
    keys = stored_in(RemoteTier("unwell://parallel"), 8)
    together = threading.Barrier(8, timeout=20)
    unwell.fail_on, unwell.before = frozenset({"info"}), together.wait
    store = TieredStore(MemoryStore(shape()), (RemoteTier("unwell://parallel", timeout_s=30),))

    found = store.get_many(keys)

    assert list(found) == keys
    assert all(lookup.run is not None and lookup.tier is Tier.REMOTE and not lookup.faults for lookup in found.values())


def test_one_fault_does_not_spoil_its_neighbours(unwell: type[Unwell]) -> None:
    """Of several that are fetched at once, only the damaged one is missing, and only its lookup says why."""
    keys = stored_in(RemoteTier("unwell://parallel"), 20)
    put("unwell://parallel", f"{keys[7]}.safetensors", b"x" * 1000)
    found = TieredStore(MemoryStore(shape()), (RemoteTier("unwell://parallel"),)).get_many(keys)

    assert [number for number, key in enumerate(keys) if found[key].run is None] == [7]
    assert [number for number, key in enumerate(keys) if found[key].faults] == [7]


class OneLine(fsspec.AbstractFileSystem):
    """A place with one connection, which two threads must not use at once."""

    protocol = ("oneline",)
    cachable = False
    busy = 0
    most = 0

    def __getattribute__(self, name: str) -> object:
        if name in ("info", "cat_file", "ls", "pipe_file"):
            return functools.partial(OneLine._use, name)
        return super().__getattribute__(name)

    @staticmethod
    def _use(name: str, path: str, *rest: object, **named: object) -> object:
        OneLine.busy += 1
        OneLine.most = max(OneLine.most, OneLine.busy)
        try:
            time.sleep(0.002)
            return getattr(MemoryFileSystem(), name)(f"/oneline/{path}", *rest, **named)
        finally:
            OneLine.busy -= 1


fsspec.register_implementation("oneline", OneLine, clobber=True)


def test_one_connection_is_used_by_one_thread_at_a_time() -> None:
    """A file system that is not known to serve several threads is asked by one, whoever asks."""
    tier = RemoteTier("oneline://x")
    keys = stored_in(tier, 6)
    stores = [TieredStore(MemoryStore(shape()), (tier,)) for _ in range(3)]
    OneLine.most = 0
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda store: store.get_many(keys), stores))

    assert OneLine.most == 1
    assert all(lookup.run is not None for each in found for lookup in each.values())


def refuse() -> None:
    """As a place that one may not write to."""
    raise PermissionError("no such right")


def test_what_another_machine_put_there_meanwhile_stays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was found bad is moved away."""
    put(url, FILE, b"x" * 1000)
    tier = RemoteTier(url)
    move_bad = remote._move_bad

    def too_late(*found: object) -> None:
        put(url, FILE, whole_file(ONE))
        move_bad(*found)  # type: ignore[arg-type]

    monkeypatch.setattr(remote, "_move_bad", too_late)
    with pytest.raises(CorruptEncoding):
        tier.read(KEY)

    assert tier.read(KEY) is not None
    assert names(url, "/quarantine") == []


def test_a_place_that_does_not_answer_is_left_in_time(unwell: type[Unwell]) -> None:
    """Nobody hangs: after the time-out there is a typed error, and for a while the place is not even asked."""
    release = threading.Event()
    tier = RemoteTier("unwell://slow", timeout_s=0.1, rest_s=0.4)
    unwell.fail_on, unwell.before = frozenset({"info"}), lambda: release.wait(20)
    started = time.monotonic()

    with pytest.raises(TierUnavailable, match=r"^unwell://slow: cannot read: no answer within 0\.1 s$"):
        tier.read(KEY)
    assert time.monotonic() - started < 10
    for ask in (lambda: tier.read(KEY), lambda: tier.write(ONE), lambda: list(tier.keys())):
        with pytest.raises(TierUnavailable, match=r"is not asked for 0\.4 s"):
            ask()

    release.set()
    unwell.fail_on = frozenset()
    time.sleep(0.5)
    assert tier.write(ONE)
    assert tier.read(KEY) is not None


@pytest.mark.parametrize("error", [Odd("lost"), ConnectionError("lost"), ValueError("lost")], ids=repr)
def test_whatever_a_backend_raises_is_told_as_one_kind(unwell: type[Unwell], error: Exception) -> None:
    """Backends raise errors of their own; the tier says which place failed at what, and why."""
    tier = RemoteTier("unwell://odd")

    def fail() -> None:
        raise error

    unwell.fail_on, unwell.before = frozenset({"info", "pipe_file"}), fail
    for what, ask in (("read", lambda: tier.read(KEY)), ("write", lambda: tier.write(ONE))):
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
        RemoteTier(url).write(ONE)
    finally:
        threading.setprofile(None)
        sys.setprofile(None)

    assert seen == {-1, size}


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file cannot get its name, its temporary file goes, too."""
    tier = RemoteTier(f"file://{tmp_path}")
    monkeypatch.setattr(fsspec.get_filesystem_class("file"), "mv", lambda *_, **__: refuse())

    with pytest.raises(TierUnavailable, match="cannot write: no such right"):
        tier.write(ONE)

    assert [path.name for path in tmp_path.rglob("*")] == ["incoming"]


def test_old_temporary_files_are_collected(tmp_path: Path) -> None:
    """What killed writers left goes after a day; what may still be being written, and foreign files, stay."""
    tier = RemoteTier(f"file://{tmp_path}")
    now, long_ago = time.time_ns(), time.time_ns() - 2 * 86_400 * 10**9
    (tmp_path / "incoming").mkdir()
    old, new = (f"{FILE}.77.{stamp}.tmp" for stamp in (long_ago, now))
    for name in (old, new, "notes.txt"):
        (tmp_path / "incoming" / name).touch()

    assert tier.gc() == (old,)

    assert sorted(path.name for path in (tmp_path / "incoming").iterdir()) == sorted([new, "notes.txt"])


@pytest.mark.parametrize("bad", ["nowhere://x", "no-such-protocol-at-all://bucket"])
def test_a_url_that_nobody_knows_is_refused(bad: str) -> None:
    """What no file system is installed for is told at once."""
    with pytest.raises(StoreError, match="cannot use this URL as a store"):
        RemoteTier(bad)


@pytest.mark.parametrize("key", ["", "../x", "A" * 64])
def test_only_keys_are_names(url: str, key: str) -> None:
    """No text leads to another object."""
    with pytest.raises(StoreError, match="is not a key"):
        RemoteTier(url).read(key)


NAMES = "abcd"
ALL = {name: small(name, 1 + index) for index, name in enumerate(NAMES)}


class Agreement(RuleBasedStateMachine):
    """Two machines with one remote place, and a dict."""

    def __init__(self) -> None:
        super().__init__()
        MemoryFileSystem.store.clear()
        self.tiers = [RemoteTier("memory://agreement") for _ in range(2)]
        self.expected: dict[str, bool] = {}  # whether it is whole

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def write(self, which: int, name: str) -> None:
        """Write; what is there stays."""
        assert self.tiers[which].write(ALL[name])
        self.expected.setdefault(name, True)

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def delete(self, which: int, name: str) -> None:
        """Delete."""
        assert self.tiers[which].delete(ALL[name].recipe.key) == (self.expected.pop(name, None) is not None)

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
            found = self.tiers[which].read(ALL[name].recipe.key)
        except CorruptEncoding:
            assert whole is False
            del self.expected[name]
            return
        assert (found is not None) == (whole is True)
        assert found is None or content(found) == content(ALL[name])

    @invariant()
    def agrees(self) -> None:
        """Both see the same keys."""
        for tier in self.tiers:
            assert set(tier.keys()) == {ALL[name].recipe.key for name in self.expected}


Agreement.TestCase.settings = settings(max_examples=law_examples(0.1), stateful_step_count=20)
TestAgreement = pytest.mark.law(Agreement.TestCase)
