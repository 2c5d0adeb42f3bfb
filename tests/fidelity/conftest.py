"""A tiny model over bytes, and few timings: no test here is about time."""

from __future__ import annotations

from importlib import import_module

import pytest

from promptcache import Engine
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model


@pytest.fixture(autouse=True)
def _one_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("promptcache.fidelity.measure"), "MIN_ROUNDS", 1)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """A tiny model with random weights over bytes, in float64."""
    return Engine(tiny_model(), ByteTokenizer())
