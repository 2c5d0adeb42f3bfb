"""KV and its views."""

from __future__ import annotations

import weakref

import torch

from promptcache.kv import KV


def test_views_are_tokens_of_each_layer() -> None:
    """`layers` returns views of its memory, layer by layer."""
    made = KV(keys=torch.arange(3 * 2 * 8 * 4).view(3, 2, 8, 4), values=-torch.arange(3 * 2 * 8 * 4).view(3, 2, 8, 4))

    views = made.layers(2, 7).by_layer

    assert len(views) == 3
    for layer, (keys, values) in enumerate(views):
        assert torch.equal(keys, made.keys[layer : layer + 1, :, 2:7])
        assert torch.equal(values, made.values[layer : layer + 1, :, 2:7])
        assert keys.untyped_storage().data_ptr() == made.keys.untyped_storage().data_ptr()


def test_views_of_the_same_tokens_are_shared() -> None:
    """Calls for the same tokens share one `LayerViews`, which is freed with its last holder."""
    made = KV(keys=torch.zeros(1, 1, 8, 2), values=torch.zeros(1, 1, 8, 2))
    first, second = made.layers(0, 4), made.layers(0, 4)
    left = weakref.ref(first)

    assert first is second
    assert made.layers(0, 5) is not first
    del first, second
    assert left() is None
