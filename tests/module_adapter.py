"""Adapters for modules with random weights."""

from __future__ import annotations

import torch

from promptcache.runtime import Model, add_adapter, layers_to_adapt


def add_random_adapter(model: Model) -> Model:
    """Give a model an adapter for modules that changes their KV much, and return it."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name in layers_to_adapt(model.hf):
        linear = model.hf.get_submodule(name)
        down, up = (
            0.3 * torch.randn(shape, generator=generator, dtype=model.shape.dtype)
            for shape in ((4, linear.in_features), (linear.out_features, 4))
        )
        weights[name] = down, up
    add_adapter(model.hf, weights, for_pairs=True)
    return model
