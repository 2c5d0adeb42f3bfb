"""The alternatives that are measured: Prompt Cache, recipes of transformers, and a lower bound for any way of linking.

Each is a function that computes the logits of one request's next token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache

from promptcache.bench.request import PlannedRequest
from promptcache.kv import KV, KVMemory
from promptcache.layout import Encoding
from promptcache.model import Model, token_tensor
from promptcache.rows import Batch, Copies, Segment, open_copies, open_graphs

Alternative: TypeAlias = Callable[[], torch.Tensor]
_Views: TypeAlias = list[Sequence[tuple[torch.Tensor, torch.Tensor]]]
"""Keys and values of all modules, layer by layer."""

BASELINE = "ordinary prefill"
_A = ord("a")


def first_token(model: Model, request: PlannedRequest) -> dict[str, Alternative]:
    """Return ways to compute the first token, by the name that tables show. docs/benchmarks.md explains each."""
    tokens = request.tokens
    segments = _segments(model, request)
    views = _views(segments)
    filled = _concatenated(views)
    own, in_place = (open_copies(model, KVMemory(model.shape)) for _ in range(2))
    all_ids = [token_id for part in tokens.parts for token_id in part.token_ids] + [*tokens.token_ids]

    def after(make_cache: Callable[[], Cache]) -> Alternative:
        return lambda: _last_logits(model, tokens.token_ids, tokens.position_ids, make_cache())

    # At a first use, keys of all modules are moved. Copies of earlier runs make room, as in an engine that has answered
    # many requests.
    num_bytes = sum(part.stop - part.start for part in tokens.parts) * model.shape.token_bytes
    small = KVMemory(model.shape, budget_bytes=num_bytes)

    # In place, the modules are stored at the positions of the request.
    stored = [_contiguous([segment]) for segment in segments]
    kv_of = {each.parts[0].encoding: each.kv for each in stored}
    at_its_place = PlannedRequest(
        tokens=replace(tokens, parts=tuple(part for each in stored for part in each.parts)), kv_of=kv_of
    )

    # The floor is a row that joined before, over modules in one contiguous tensor.
    whole = _contiguous(segments)
    batch = Batch(model, graphs=open_graphs(model))
    row = batch.join(replace(tokens, parts=whole.parts), {whole.parts[0].encoding: whole.kv})

    def floor() -> torch.Tensor:
        row.num_own = 0
        return batch.step([(row, tokens.token_ids)])[None]

    return {
        BASELINE: lambda: _last_logits(model, all_ids, range(len(all_ids)), DynamicCache()),
        "concatenate": after(lambda: _concatenated(views)),
        "deep copy": after(lambda: copy.deepcopy(filled)),
        "prompt cache": _row(model, request, lambda: own),
        "first use": _row(model, request, lambda: Copies(model, small)),
        "in place": _row(model, at_its_place, lambda: in_place),
        "floor": floor,
    }


def further_tokens(model: Model, request: PlannedRequest, num_tokens: int) -> dict[str, Alternative]:
    """Return ways to decode tokens one by one. Each call starts behind the prompt."""
    tokens = request.tokens
    cache = _concatenated(_views(_segments(model, request)))
    _last_logits(model, tokens.token_ids, tokens.position_ids, cache)
    first = tokens.position_ids[-1] + 1
    batch = Batch(model, open_copies(model, KVMemory(model.shape)), open_graphs(model))
    row = batch.join(tokens, request.kv_of)
    batch.step([(row, tokens.token_ids)])

    def concatenated() -> torch.Tensor:
        for position in range(first, first + num_tokens):
            logits = _last_logits(model, [_A], [position], cache)
        cache.crop(-num_tokens)
        return logits

    def linked() -> torch.Tensor:
        for _ in range(num_tokens):
            logits = batch.step([(row, [_A])])
        row.num_own -= num_tokens
        return logits

    return {"concatenate": concatenated, "prompt cache": linked}


def _segments(model: Model, request: PlannedRequest) -> tuple[Segment, ...]:
    """Return the stored KV of a request at its positions."""
    batch = Batch(model)
    return batch.segments(batch.join(request.tokens, request.kv_of))


def _row(model: Model, request: PlannedRequest, copies: Callable[[], Copies]) -> Alternative:
    """Compute the request as an engine does after planning and fetching: one row. Each run asks for the copies."""
    graphs = open_graphs(model)

    def run() -> torch.Tensor:
        batch = Batch(model, copies(), graphs)
        row = batch.join(request.tokens, request.kv_of)
        return batch.step([(row, request.tokens.token_ids)])[None]

    return run


def _views(segments: Sequence[Segment]) -> _Views:
    return list(zip(*(segment.layers() for segment in segments), strict=True))


def _contiguous(segments: Sequence[Segment]) -> Segment:
    """Return the modules as one segment in memory of its own, with meaningless token IDs."""
    keys, values = zip(*map(_whole, _views(segments)), strict=True)
    positions = tuple(int(each) for segment in segments for each in segment.position_array())
    part = Encoding(token_ids=positions, position_ids=positions).whole
    kv = KV(keys=torch.cat(keys), values=torch.cat(values))
    return Segment(kv=kv, start=0, stop=len(positions), parts=(part,))


def _concatenated(views: _Views) -> Any:
    cache = DynamicCache()
    for layer, each in enumerate(views):
        cache.update(*_whole(each), layer)
    return cache


def _whole(views: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (torch.cat(each, dim=2) for each in zip(*views, strict=True))
    return keys, values


@torch.no_grad()
def _last_logits(model: Model, token_ids: Sequence[int], position_ids: Any, cache: Cache) -> torch.Tensor:
    """Run tokens through the model and return the logits of the last one, `[1, 1, V]`. The cache grows."""
    logits: torch.Tensor = model.hf(
        input_ids=token_tensor(token_ids, model.device),
        position_ids=token_tensor(position_ids, model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    return logits
