"""KV and its views."""

from __future__ import annotations

import weakref

import torch

from promptcache.kv import KV


def test_views_of_the_same_tokens_are_shared() -> None:
    """Calls for the same tokens share one `LayerViews`, which is freed with its last holder."""
    made = KV(keys=torch.zeros(1, 1, 8, 2), values=torch.zeros(1, 1, 8, 2))
    first, second = made.layers(0, 4), made.layers(0, 4)
    left = weakref.ref(first)

    assert first is second
    assert made.layers(0, 5) is not first
    del first, second
    assert left() is None
