"""Limits of CPU time grow with the time that a fixed piece of work takes."""

from __future__ import annotations

import time

import pytest

from tests.speed import is_within


def test_a_slow_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred times slower, work may take ten times its limit, and never a million times."""
    clock = time.process_time
    monkeypatch.setattr(time, "process_time", lambda: 100 * clock())

    assert is_within(0.9, 1)
    assert is_within(10, 1)
    assert not is_within(1e6, 1)
