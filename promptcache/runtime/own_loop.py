"""Inputs for the caller's own loop: a linked prompt as transformers takes one whose cache is filled.

They are the IDs of the whole prompt, and a cache with the KV of all its tokens but the last. The cache attends to
stored KV where it is, or it is a plain `DynamicCache` with a copy of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from promptcache.diagnostics import UnsupportedModel
from promptcache.kv import KVHandle
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime.attention import PositionArray, RequestPositions
from promptcache.runtime.batch import Batch
from promptcache.runtime.encode import CHUNK_TOKENS
from promptcache.runtime.executor import Executor
from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.runtime.hf.positioned_cache import PositionedCache, PositionedDynamicCache
from promptcache.runtime.segments import Segment, segments_of


@torch.no_grad()
def linked_inputs(tokens: RequestTokens, executor: Executor) -> dict[str, Any]:
    """Return `input_ids`, `attention_mask` and `past_key_values`. The cache attends to stored KV where it is."""
    model, segments = executor.model, _linked(tokens, executor)
    cache = PositionedCache(layers=model.cache(RequestPositions(segments, tokens.position_ids[-1:])).layers)
    return _inputs(cache, _positions(segments, tokens), tokens, model)


@torch.no_grad()
def dynamic_cache_inputs(tokens: RequestTokens, executor: Executor) -> dict[str, Any]:
    """Return the same with a `DynamicCache` of transformers, with a copy of all KV in the order of positions.

    Raises:
        UnsupportedModel: The model has sliding windows, which such a cache counts in tokens, and the prompt has a gap
            in its positions that a window reaches over.
    """
    model, segments = executor.model, _linked(tokens, executor)
    positions = _positions(segments, tokens)
    _check_windows(np.sort(positions), model)
    order = torch.from_numpy(np.argsort(positions[:-1])).to(model.device)
    views = [segment.layers().by_layer for segment in segments]
    cache = PositionedDynamicCache()  # it holds all tokens, also beyond a sliding window
    for layer in range(model.shape.num_layers if views else 0):
        keys, values = (torch.cat([each[layer][kind] for each in views], dim=2)[:, :, order] for kind in range(2))
        cache.update(keys, values, layer)
    return _inputs(cache, positions, tokens, model, is_shared=True)


def _linked(tokens: RequestTokens, executor: Executor) -> tuple[Segment, ...]:
    """Return segments with the KV of all tokens of a request but the last; the new ones among them are computed."""
    fetched = executor.fetch(part.encoding for part in tokens.parts)
    batch = Batch(executor.model, executor.pool)
    row = batch.join(tokens, fetched.handles)
    own_ids = tokens.token_ids[:-1]
    for start in range(0, len(own_ids), CHUNK_TOKENS):
        batch.encode([(row, own_ids[start : start + CHUNK_TOKENS])])
    if not own_ids:
        return batch.segments(row)
    own = Encoding(token_ids=own_ids, position_ids=tokens.position_ids[:-1], context=tokens.parts)
    handles = {own: KVHandle(slab=batch.own_kv(row), start=0, stop=len(own_ids))}
    return (*batch.segments(row), *segments_of([own.whole], handles))


def _positions(segments: tuple[Segment, ...], tokens: RequestTokens) -> PositionArray:
    """Return the positions of the tokens of segments, and of the last token behind them."""
    arrays = [segment.position_array() for segment in segments]
    return np.concatenate([*arrays, np.array(tokens.position_ids[-1:])])


def _inputs(
    cache: Any, positions: PositionArray, tokens: RequestTokens, model: Model, *, is_shared: bool = False
) -> dict[str, Any]:
    token_ids = token_tensor(tokens.used_ids, model.device)
    cache.place(np.sort(positions)[None], model.hf, model.guard, token_ids=token_ids, is_shared=is_shared)
    return {"input_ids": token_ids, "attention_mask": torch.ones_like(token_ids), "past_key_values": cache}


def _check_windows(positions: PositionArray, model: Model) -> None:
    """Refuse positions whose last window of tokens has a gap.

    Args:
        positions: Of all tokens of the prompt, ascending.
    """
    window = model.facts.window
    if window is None:
        return
    for before, after in pairwise(positions[-window:].tolist()):
        if after != before + 1:
            raise UnsupportedModel(
                f"{model.facts.name} has sliding windows of {window} positions, and a DynamicCache counts them in "
                f"tokens: this prompt has no token between positions {before} and {after}, so its windows would reach "
                "too far. Use link()"
            )
