"""Fixtures of the language's tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def few_objects() -> Iterator[None]:
    """Freeze the objects of earlier tests, so that garbage collections ignore them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
