"""Alternatives are timed in turn, and the first run of each does not count."""

import pytest
import torch

from promptcache import timing
from promptcache.timing import interleave


def interleaved(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], repeats: int) -> tuple[str, list[int]]:
    """Interleave works that take so long by a fake clock; return the order of the calls, and how many count.

    Before each round, progress gets the rounds that are done, and the number of all rounds.
    """
    calls: list[str] = []
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: sum(seconds[name] for name in calls))
    monkeypatch.setattr(timing.gc, "collect", int)

    works = {name: lambda name=name: calls.append(name) for name in seconds}
    samples = interleave(works, repeats, torch.device("cpu"), lambda *each: told.append(each))

    assert {name: set(each.seconds) for name, each in samples.items()} == {name: {seconds[name]} for name in seconds}
    assert told == [(done, repeats + 1) for done in range(repeats + 1)]
    return "".join(calls), [len(each.seconds) for each in samples.values()]


def test_interleaved_runs_are_counted_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every alternative runs once more than is counted, in turn."""
    assert interleaved(monkeypatch, {"a": 1, "b": 2}, 3) == ("abababab", [3, 3])


def test_what_is_much_faster_than_the_slowest_is_run_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times in each round, each turn in an order of its own, so that none always follows the same one."""
    calls, counted = interleaved(monkeypatch, {"a": 1, "b": 100, "c": 2}, 2)

    assert counted == [10, 2, 10]
    assert calls.startswith("abcb")
    turns = [turn[place : place + 2] for turn in calls[3:].split("b") for place in range(0, len(turn), 2)]
    assert (len(turns), set(turns)) == (10, {"ac", "ca"})
