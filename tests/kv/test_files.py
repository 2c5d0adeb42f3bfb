"""A tier of files returns what was written, bit for bit, or raises a typed error, in a folder and under URLs."""

import logging
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv.files.format import pack
from tests.conftest import law_examples
from tests.kv.stored import Place, content, emptied, file_bytes, read, small, store_over, write

ONE = small("one")
KEY = ONE.recipe.key
NAME = f"{KEY}.safetensors"
KINDS = ("", "memory://", "failing://", "file://")
"""A folder, two object stores, and a URL whose files can be renamed."""


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with emptied():
        yield Place(f"{request.param}{tmp_path}/shared")


def test_foreign_files_are_not_listed(place: Place) -> None:
    write(place.tier(), ONE)
    foreign = ("notes.txt", "notes.safetensors", KEY, f"{KEY.upper()}.safetensors", f"{NAME}.bak")
    for name in foreign:
        place.files.pipe_file(f"{place.root}/encodings/{name}", b"foreign")
    tier = place.tier()

    assert tier.keys() == (KEY,)
    assert tier.nbytes() == (0 if "://" in place.location else file_bytes(ONE))
    assert [each.name for each in tier.verify_all()] == [NAME]
    assert tier.gc() == ()
    assert place.names() == sorted((*foreign, NAME))


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, KEY + "0", KEY[:-1] + "/"])
def test_text_that_is_not_a_key_is_refused(place: Place, key: str) -> None:
    """Text that is not a key raises `StoreError`, so no path leads out of the place."""
    tier = place.tier()

    for ask in (tier.read, tier.delete, tier.read_unverified, lambda key: tier.write(key, b"")):
        with pytest.raises(StoreError, match="a key, 64 hexadecimal digits, is expected"):
            ask(key)


DAMAGE = {
    "truncated": pack(ONE)[:-1],
    "empty": b"",
    "longer": pack(ONE) + b"\0",
    "flipped": pack(ONE)[:-1] + bytes([pack(ONE)[-1] ^ 1]),
    "foreign": b"x" * 1000,
    "another encoding": pack(small("two")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_deleted_and_written_again(
    place: Place, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    tier = place.tier()
    store = store_over(place.location)
    write(tier, ONE)
    read(tier, KEY)
    place.put(KEY, DAMAGE[damage])
    assert [each.fault is None for each in tier.verify_all()] == [False]

    with caplog.at_level(logging.WARNING):
        found, again = store.get(KEY), store.get(KEY)

    assert (found.kv, again.kv, again.faults) == (None, None, ())
    (fault,) = found.faults
    assert fault.startswith(f"{tier.kind}: {tier}/{KEY}")
    assert [f"{tier.kind}: {record.getMessage()}" for record in caplog.records] == [fault]
    assert place.names() == []
    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])
    healed = read(tier, KEY)
    assert healed is not None
    assert content(healed) == content(ONE)


def test_a_folder_in_place_of_a_file_is_damage(place: Place) -> None:
    """A folder with the name of an encoding is no file, and stays, because it may hold anything."""
    place.files.makedirs(place.path(KEY))
    place.files.pipe_file(f"{place.path(KEY)}/x", b"")
    store = store_over(place.location)

    assert "is not a file" in store.get(KEY).faults[0]
    assert store.lacking([KEY]) == {place.location: {KEY}}
    assert place.files.exists(f"{place.path(KEY)}/x")


def test_writes_are_atomic(place: Place) -> None:
    """At every step of a write, the file is either missing or complete."""
    seen: set[int] = set()
    held = getattr(place.files, "store", None)

    def look(_: FrameType, event: str, __: object) -> None:
        if event not in ("c_return", "return"):
            return
        if held is None:
            path = Path(place.path(KEY))
            seen.add(path.stat().st_size if path.exists() else -1)
        else:
            entry = held.get(place.path(KEY))
            seen.add(len(entry.getvalue()) if entry is not None else -1)

    tier = place.tier()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        tier.write(KEY, pack(ONE))
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)

    assert seen == {-1, file_bytes(ONE)}


def test_a_failed_write_leaves_no_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = place.tier()

    def refuse(*_: object) -> None:
        raise PermissionError("no such right")

    with monkeypatch.context() as patch:
        patch.setattr(type(place.files), "pipe_file" if "failing" in place.location else "mv", refuse)
        with pytest.raises(TierUnavailable) as caught:
            write(tier, ONE)

    assert str(caught.value) == f"{place.location}: cannot write: no such right"
    assert place.names("incoming") == place.names() == []
    assert write(tier, ONE)


NAMES = "abcd"
ALL = {name: small(name, 1 + index) for index, name in enumerate(NAMES)}


class Agreement(RuleBasedStateMachine):
    """Two tiers of one place, as in two processes, and a dict. A folder may have a budget, which loses files."""

    @initialize(kind=st.sampled_from(KINDS), budget=st.none() | st.integers(1, 2 * file_bytes(ALL["d"])))
    def open(self, kind: str, budget: int | None) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.place = Place(f"{kind}{self.temporary.name}/agreement")
        self.budget = None if kind else budget
        self.tiers = [self.place.tier(budget_bytes=self.budget) for _ in range(2)]
        self.expected: dict[str, bool] = {}  # whether the file is complete

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.tiers[which] = self.place.tier(budget_bytes=self.budget)

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def write(self, which: int, name: str) -> None:
        is_there = write(self.tiers[which], ALL[name])
        assert is_there == (self.budget is None or file_bytes(ALL[name]) <= self.budget)
        if is_there:
            self.expected[name] = True

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def delete(self, which: int, name: str) -> None:
        self.tiers[which].delete(ALL[name].recipe.key)
        self.expected.pop(name, None)

    @rule(name=st.sampled_from(NAMES), data=st.binary(max_size=9))
    def damage(self, name: str, data: bytes) -> None:
        """Replace a file by random bytes. Without a budget it may be a new file."""
        if self.budget is None or name in self.expected:
            self.place.put(ALL[name].recipe.key, data)
            self.expected[name] = False

    @rule(which=st.integers(0, 1))
    def verify(self, which: int) -> None:
        """The damaged files are found, and neither a write nor a probe leaves an unfinished one."""
        tier = self.tiers[which]
        found = {each.name.removesuffix(".safetensors"): each.fault is None for each in tier.verify_all()}
        assert found == {ALL[name].recipe.key: whole for name, whole in self.expected.items()}
        tier.probe()
        assert (self.place.names("incoming"), tier.gc()) == ([], ())

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def read(self, which: int, name: str) -> None:
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
        """Both tiers list the same keys: all that is expected, or what the budget has left of it."""
        for tier in getattr(self, "tiers", ()):
            keys, expected = set(tier.keys()), {ALL[name].recipe.key for name in self.expected}
            assert keys == expected or (self.budget is not None and keys < expected)
            assert tier.nbytes() <= (self.budget or 2**40)
            self.expected = {name: whole for name, whole in self.expected.items() if ALL[name].recipe.key in keys}

    def teardown(self) -> None:
        with emptied():
            if hasattr(self, "temporary"):
                self.temporary.cleanup()


Agreement.TestCase.settings = settings(max_examples=law_examples(0.15), stateful_step_count=25)
TestAgreement = pytest.mark.law(Agreement.TestCase)
