"""Benchmarks of these tests leave out the garbage collection before each run, which takes long where torch is loaded."""

from __future__ import annotations

import pytest

from promptcache.bench import harness


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.gc, "collect", int)
