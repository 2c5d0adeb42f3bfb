"""One replica at a time holds a lease. If it dies, others wait until the lease ends at most."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from promptcache.diagnostics import TierUnavailable
from promptcache.kv.files.lease import Lease
from tests.conftest import law_examples

KEY = "a" * 64
LENGTH_S = 20.0
RENEWAL_S = LENGTH_S / 4


class Folder:
    """A folder in memory. Exclusive creation works, or overwrites without notice, as some object stores do."""

    def __init__(self, *, exclusive: bool = True) -> None:
        self.exclusive = exclusive
        self.files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def read(self, name: str) -> bytes | None:
        """Return a file."""
        return self.files.get(name)

    def create(self, name: str, content: bytes) -> bool:
        """Create a file."""
        with self._lock:
            if self.exclusive and name in self.files:
                return False
            self.files[name] = content
            return True

    def replace(self, name: str, content: bytes) -> None:
        """Write a file."""
        self.files[name] = content

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.files.pop(name, None)


class Connection:
    """The folder as one claimant reaches it: operations can be slow, or fail before or after they took effect.

    Attributes:
        faults: "slow", "before" or "after" for each of the next operations.
        meanwhile: Called at a fault, before the claimant gets an answer.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.faults: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def _ask(self, operation: Callable[..., object], *arguments: object) -> object:
        fault = self.faults.pop() if self.faults else None
        answer = None if fault == "before" else operation(*arguments)
        if fault is not None:
            self.meanwhile()
        if fault in ("before", "after"):
            raise TierUnavailable(f"no answer ({fault}, a planted fault)")
        return answer

    def read(self, name: str) -> bytes | None:
        """Read, or fail."""
        return self._ask(self._folder.read, name)  # type: ignore[return-value]

    def create(self, name: str, content: bytes) -> bool:
        """Create, or fail."""
        return bool(self._ask(self._folder.create, name, content))

    def replace(self, name: str, content: bytes) -> None:
        """Replace, or fail."""
        self._ask(self._folder.replace, name, content)

    def remove(self, name: str) -> None:
        """Remove, or fail."""
        self._ask(self._folder.remove, name)


class Claimant:
    """A process that wants the key, with a clock of its own.

    Attributes:
        state: "waiting", "holding", or "failed" after a fault, when the request encodes without a claim.
    """

    def __init__(self, machine: LeaseMachine, clock_offset_s: float) -> None:
        self.machine = machine
        self.connection = Connection(machine.folder)
        self.lease = Lease(self.connection, KEY, LENGTH_S, lambda: machine.now + clock_offset_s)
        self.steps: Generator[float, None, None] = self.lease.acquire()
        self.wake_at = machine.now
        self.renew_at = 0.0
        self.state = "waiting"

    def step(self) -> None:
        """Do the next operation, if it is due."""
        if self.state != "waiting" or self.machine.now < self.wake_at or self.steps.gi_running:
            return
        try:
            self.wake_at = self.machine.now + next(self.steps)
        except StopIteration:
            self.state, self.renew_at = "holding", self.machine.now + RENEWAL_S
        except TierUnavailable:
            self.state = "failed"

    def renew(self) -> None:
        """Renew the lease, if that is due."""
        if self.state == "holding" and self.machine.now >= self.renew_at:
            self.renew_at = self.machine.now + RENEWAL_S
            with contextlib.suppress(TierUnavailable):
                self.lease.renew()

    def release(self) -> None:
        """End the claim."""
        self.state = "done"
        with contextlib.suppress(TierUnavailable):
            self.lease.release()


class LeaseMachine(RuleBasedStateMachine):
    """Claimants with clocks of their own act, die, sleep and lose answers in any order."""

    exclusive = True

    @initialize()
    def start(self) -> None:
        """Start with an empty folder."""
        self.folder = Folder(exclusive=self.exclusive)
        self.now = 1000.0
        self.claimants: list[Claimant] = []
        self.dead: list[Claimant] = []
        self.had_faults = False

    def _one(self, number: int) -> Claimant | None:
        return self.claimants[number % len(self.claimants)] if self.claimants else None

    @rule(clock_offset_s=st.floats(-1e6, 1e6))
    def arrive(self, clock_offset_s: float) -> None:
        """Another process wants the key."""
        if len(self.claimants) < 4:
            self.claimants.append(Claimant(self, clock_offset_s))

    @rule(numbers=st.lists(st.integers(0, 3), min_size=1, max_size=12))
    def act(self, numbers: list[int]) -> None:
        """Claimants do their next operations, in any order."""
        for number in numbers:
            if (one := self._one(number)) is not None:
                one.step()
                self.holds_alone()

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 11.0, 21.0]))
    def sleep(self, seconds: float) -> None:
        """Time passes, and no process acts: all of them were stopped."""
        self.now += seconds

    @rule(seconds=st.sampled_from([1.0, 5.0, 21.0, 45.0]))
    def work(self, seconds: float) -> None:
        """Time passes while every claimant acts and renews."""
        self._work(seconds, self.claimants)

    def _work(self, seconds: float, working: Sequence[Claimant]) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            for one in tuple(working):
                one.step()
                one.renew()
                self.holds_alone()

    @rule(number=st.integers(0, 3), seconds=st.sampled_from([5.0, 21.0, 45.0]))
    def stop(self, number: int, seconds: float) -> None:
        """A process is stopped for a while; the others work."""
        one = self._one(number)
        self._work(seconds, [each for each in self.claimants if each is not one])

    @rule(number=st.integers(0, 3))
    def release(self, number: int) -> None:
        """A holder is done."""
        one = self._one(number)
        if one is not None and one.state == "holding":
            self.claimants.remove(one)
            one.release()

    @rule(number=st.integers(0, 3))
    def die(self, number: int) -> None:
        """A process is killed, whatever it does."""
        one = self._one(number)
        if one is not None:
            self.claimants.remove(one)
            self.had_faults = True

    @rule(
        number=st.integers(0, 3),
        faults=st.lists(st.sampled_from(["slow", "before", "after"]), min_size=1, max_size=3),
        others=st.lists(st.integers(0, 3), max_size=9),
    )
    def fail(self, number: int, faults: list[str], others: list[int]) -> None:
        """The next operations of a claimant are slow or fail; the others act before it notices."""
        if (one := self._one(number)) is not None:
            one.connection.faults = list(faults)
            one.connection.meanwhile = lambda: [each.step() for each in map(self._one, others) if each is not None]
            self.had_faults = True

    @invariant()
    def holds_alone(self) -> None:
        """At most one claimant holds the key by its own judgement."""
        if self.exclusive and hasattr(self, "claimants"):
            holders = [one for one in self.claimants if one.state == "holding" and one.lease.is_safe]
            assert len(holders) <= 1

    def teardown(self) -> None:
        """All holders die. The others get the key in turn: the first within the lease, the rest at once."""
        if not hasattr(self, "claimants"):
            return
        left = [one for one in self.claimants if one.state == "waiting"] + [Claimant(self, 5.0)]
        self.claimants = left
        longest_s = LENGTH_S + 3.0  # each operation takes 0.05 s, and a chain of dead holders has several files
        while left:
            for one in left:
                one.connection.faults = []
            end = self.now + longest_s
            while not (ready := [one for one in left if one.state != "waiting"]):
                assert self.now <= end, "the death of a holder delayed the others for longer than the lease"
                self.now += 0.05
                for one in left:
                    one.step()
            for one in ready:
                left.remove(one)
                if one.state == "holding":
                    one.release()
                    longest_s = 2.0 if self.exclusive else longest_s
        if not self.had_faults:
            assert self.folder.files == {}
        if self.exclusive:
            assert KEY not in self.folder.files


class ExclusiveMachine(LeaseMachine):
    """With exclusive creation."""


class OverwritingMachine(LeaseMachine):
    """Without exclusive creation: two may hold the key, but no claimant waits longer or fails."""

    exclusive = False


for _machine in (ExclusiveMachine, OverwritingMachine):
    _machine.TestCase.settings = settings(max_examples=law_examples(0.2), stateful_step_count=30)
TestExclusive = pytest.mark.law(ExclusiveMachine.TestCase)
TestOverwriting = pytest.mark.law(OverwritingMachine.TestCase)


def test_a_claimant_that_was_stopped_before_its_next_look_does_not_hold_the_key() -> None:
    """A lease that ran out while its claimant was stopped is not held: another one may take it over."""
    folder, now = Folder(), 0.0
    assert Lease(folder, KEY, LENGTH_S, lambda: now).wait(0)  # abandoned
    stopped = Lease(folder, KEY, LENGTH_S, lambda: now)
    steps = stopped.acquire()
    while len(folder.files) == 1:
        now += next(steps)
    now += LENGTH_S + 1

    for _ in range(4):
        next(steps)  # it waits again, and does not end

    assert not stopped.is_safe


@pytest.mark.parametrize(
    "content", [b"", b'{"id": "../escape", "lease_s": 1e9', b"[" * 200_000], ids=["empty", "cut off", "nested"]
)
def test_damaged_leases_expire(content: bytes) -> None:
    """A lease that cannot be read is taken over after the length of a lease, like any other."""
    folder, now = Folder(), 1000.0
    folder.files[KEY] = content
    lease = Lease(folder, KEY, LENGTH_S, lambda: now)
    for pause_s in lease.acquire():
        now += pause_s

    assert LENGTH_S <= now - 1000 < LENGTH_S + 0.1
    lease.release()
    assert folder.files == {}


class Cancelled(Exception):
    """The client has gone."""


def test_a_wait_in_a_long_chain_is_cancelled() -> None:
    """A wait looks at its client before each operation, so a folder that never ends cannot keep it."""
    folder = Folder()
    folder.read = lambda name: name.encode()  # type: ignore[method-assign]
    turns: list[int] = []

    def on_wait() -> None:
        turns.append(1)
        if len(turns) == 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        Lease(folder, KEY).wait(60, on_wait)
    assert not Lease(folder, KEY).wait(0.05)


def test_a_cancelled_wait_leaves_no_lease() -> None:
    """A wait that is cancelled between the creation of its lease and the next look removes the lease."""
    folder = Folder()
    folder.files[KEY] = b"damaged"

    def on_wait() -> None:
        if len(folder.files) > 1:
            raise Cancelled

    with pytest.raises(Cancelled):
        Lease(folder, KEY, 0.01).wait(5, on_wait)
    assert folder.files == {KEY: b"damaged"}
