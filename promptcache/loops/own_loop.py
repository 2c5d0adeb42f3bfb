"""Inputs for the caller's own loop: a linked prompt as transformers takes one whose cache is filled.

They are the IDs of the whole prompt, and a `DynamicCache` with a copy of the KV of all its tokens but the last.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from promptcache.diagnostics import UnsupportedModel
from promptcache.encode import CHUNK_TOKENS, Executor, prepare
from promptcache.layout import Plan
from promptcache.model import PositionedDynamicCache, token_tensor
from promptcache.rows import Batch


@torch.no_grad()
def linked_inputs(plan: Plan, executor: Executor) -> dict[str, Any]:
    """Return `input_ids`, `attention_mask` and `past_key_values`, with the KV in the order of positions.

    Raises:
        UnsupportedModel: The model has sliding windows, which such a cache counts in tokens, and the prompt has a gap
            in its positions that a window reaches over.
    """
    prepared, model = prepare(plan, executor), executor.model
    tokens = prepared.plan.tokens
    batch = Batch(model, executor.copies)
    row, own_ids = batch.join(tokens, prepared.fetched.kv_of), tokens.token_ids[:-1]
    segments = batch.segments(row)
    positions = np.concatenate([*(each.position_array() for each in segments), np.array(tokens.position_ids)])
    window, used = model.facts.window, np.sort(positions)
    for before, after in pairwise(used[-window:].tolist() if window is not None else ()):
        if after != before + 1:
            raise UnsupportedModel(
                f"{model.facts.name} has sliding windows of {window} positions, and a cache of transformers counts "
                f"them in tokens: this prompt has no token between positions {before} and {after}, so its windows "
                'would reach too far. Use generate(), or a schema with positions="closed"'
            )
    for start in range(0, len(own_ids), CHUNK_TOKENS):
        batch.encode([(row, own_ids[start : start + CHUNK_TOKENS])])
    views = [*(each.layers() for each in segments), batch.own_kv(row).layers(0, len(own_ids))]
    order = torch.from_numpy(np.argsort(positions[:-1])).to(model.device)
    cache = PositionedDynamicCache()  # it holds all tokens, also beyond a sliding window
    for layer in range(model.shape.num_layers if len(order) else 0):
        keys, values = (torch.cat([each[layer][kind] for each in views], dim=2)[:, :, order] for kind in range(2))
        cache.update(keys, values, layer)
    token_ids = token_tensor(tokens.used_ids, model.device)
    cache.place(used, model.hf, model.guard, token_ids=token_ids)
    return {"input_ids": token_ids, "attention_mask": torch.ones_like(token_ids), "past_key_values": cache}
