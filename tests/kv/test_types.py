"""Slabs and their views."""

from __future__ import annotations

import weakref

import torch

from promptcache.kv import Slab


def test_views_are_tokens_of_each_layer() -> None:
    """`layers` returns views of the slab's memory, layer by layer."""
    slab = Slab(keys=torch.arange(3 * 2 * 8 * 4).view(3, 2, 8, 4), values=-torch.arange(3 * 2 * 8 * 4).view(3, 2, 8, 4))

    views = slab.layers(2, 7).by_layer

    assert len(views) == 3
    for layer, (keys, values) in enumerate(views):
        assert torch.equal(keys, slab.keys[layer : layer + 1, :, 2:7])
        assert torch.equal(values, slab.values[layer : layer + 1, :, 2:7])
        assert keys.untyped_storage().data_ptr() == slab.keys.untyped_storage().data_ptr()


def test_views_of_the_same_tokens_are_shared() -> None:
    """Calls for the same tokens share one `LayerViews`, which is freed with its last holder."""
    slab = Slab(keys=torch.zeros(1, 1, 8, 2), values=torch.zeros(1, 1, 8, 2))
    first, second = slab.layers(0, 4), slab.layers(0, 4)
    left = weakref.ref(first)

    assert first is second
    assert slab.layers(0, 5) is not first
    del first, second
    assert left() is None
