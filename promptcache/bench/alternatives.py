"""Alternatives to Prompt Cache: the documented recipes of transformers, and a lower bound for any way of linking.

Each function takes a model and a workload. It returns a function that computes the logits of one request's first token.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache

from promptcache.bench.workload import Workload
from promptcache.diagnostics import first_line
from promptcache.kv import KVHandle, MemoryStore, Slab
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime import (
    Batch,
    KVView,
    Model,
    Pool,
    RequestPositions,
    Segment,
    link,
    open_graphs,
    open_pool,
    token_tensor,
)

Alternative = Callable[[], torch.Tensor]


def cached(model: Model, work: Workload) -> Alternative:
    """Prompt Cache: a row joins with stored modules that were used before, and its new tokens are prefilled."""
    rows = _Rows(model, open_pool(model, MemoryStore(model.shape)))
    return lambda: rows.logits(work.tokens, work.handles)


def first_use(model: Model, work: Workload) -> Alternative:
    """Prompt Cache, for modules that no request has used at these positions before: their keys are moved.

    The copies of earlier runs make room, as in an engine that has answered many requests.
    """
    num_tokens = sum(part.stop - part.start for part in work.tokens.parts)
    memory = MemoryStore(model.shape, budget_bytes=num_tokens * model.shape.token_bytes)
    rows = _Rows(model, Pool(model, memory.buffers(num_tokens * model.shape.token_bytes)))
    states = itertools.count()
    return lambda: rows.logits(work.tokens, work.handles, next(states))


def in_place(model: Model, work: Workload) -> Alternative:
    """Prompt Cache, for modules that are stored at the positions of the request: no key is moved."""
    rows = _Rows(model, open_pool(model, MemoryStore(model.shape)))
    parts, handles = [], {}
    for segment in link(work.tokens, work.handles, model).positions.segments:
        keys, values = zip(*segment.layers().by_layer, strict=True)
        positions = tuple(map(int, segment.position_array()))
        encoding = _anything(positions)
        parts.append(encoding.whole)
        slab = Slab(keys=torch.cat(keys).clone(), values=torch.cat(values).clone())
        handles[encoding] = KVHandle(slab=slab, start=0, stop=len(positions))
    tokens = replace(work.tokens, parts=tuple(parts))
    return lambda: rows.logits(tokens, handles)


def linked(model: Model, work: Workload) -> Alternative:
    """`engine.link`: the same KV in a cache of transformers, for its `generate` or a loop of the caller."""
    pool = open_pool(model, MemoryStore(model.shape))

    def run() -> torch.Tensor:
        made = link(work.tokens, work.handles, model, pool)
        return last_logits(model, made.token_ids, made.position_ids, made.cache)

    return run


def floor(model: Model, work: Workload) -> Alternative:
    """The lower bound: the same forward pass over KV in one contiguous tensor, without linking."""
    linked = link(work.tokens, work.handles, model)
    keys, values = zip(*map(_whole, _parts(linked.positions.segments)), strict=True)
    slab = Slab(keys=torch.cat(keys), values=torch.cat(values))
    positions = tuple(int(each) for segment in linked.positions.segments for each in segment.position_array())
    whole = Segment(
        handles=(KVHandle(slab=slab, start=0, stop=len(positions)),),
        start=0,
        stop=len(positions),
        parts=(_anything(positions).whole,),
    )

    def run() -> torch.Tensor:
        cache = model.cache(RequestPositions((whole,), linked.position_ids))
        return last_logits(model, linked.token_ids, linked.position_ids, cache)

    return run


def plain(model: Model, work: Workload) -> Alternative:
    """Plain prefill of all tokens, without a cache."""
    tokens = [token_id for part in work.tokens.parts for token_id in part.token_ids]
    tokens.extend(work.tokens.token_ids)

    def run() -> torch.Tensor:
        return last_logits(model, tokens, range(len(tokens)), DynamicCache())

    return run


def concatenated(model: Model, work: Workload) -> Alternative:
    """Concatenate the KV of the modules into a new `DynamicCache`, then prefill the new tokens."""
    linked = link(work.tokens, work.handles, model)
    parts = _parts(linked.positions.segments)

    def run() -> torch.Tensor:
        return last_logits(model, linked.token_ids, linked.position_ids, _concatenation(parts))

    return run


def deep_copied(model: Model, work: Workload) -> Alternative:
    """Deep-copy a `DynamicCache` that holds exactly this selection, then prefill the new tokens."""
    linked = link(work.tokens, work.handles, model)
    filled: Any = DynamicCache()
    for layer, views in enumerate(_parts(linked.positions.segments)):
        filled.update(*_whole(views), layer)

    def run() -> torch.Tensor:
        return last_logits(model, linked.token_ids, linked.position_ids, copy.deepcopy(filled))

    return run


def decoding(model: Model, work: Workload, num_tokens: int) -> Alternative:
    """Decode tokens one by one over stored modules. Each call starts behind the prompt."""
    batch = Batch(model, open_pool(model, MemoryStore(model.shape)), open_graphs(model))
    row = batch.join(work.tokens, work.handles, model.state)
    batch.step([(row, work.tokens.token_ids)])

    def run() -> torch.Tensor:
        for _ in range(num_tokens):
            logits = batch.step([(row, [ord("a")])])
        row.num_own -= num_tokens
        return logits

    return run


def decoding_concatenated(model: Model, work: Workload, num_tokens: int) -> Alternative:
    """The same over a concatenated `DynamicCache`."""
    cache = concatenated_cache(model, work)
    last_logits(model, work.tokens.token_ids, work.tokens.position_ids, cache)
    first = work.tokens.position_ids[-1] + 1

    def run() -> torch.Tensor:
        for position in range(first, first + num_tokens):
            logits = last_logits(model, [ord("a")], [position], cache)
        cache.crop(-num_tokens)
        return logits

    return run


def compiled(model: Model, work: Workload) -> Alternative:
    """Prefill the new tokens in the pass that transformers compiles, over a `StaticCache` with exactly this selection.

    The cache is filled once. Each call writes over the new tokens of the call before it.
    """
    tokens = work.tokens
    cache = static_cache(model, work, len(tokens.token_ids))
    forward = compiled_forward(model)

    def run() -> torch.Tensor:
        logits = last_logits(model, tokens.token_ids, tokens.position_ids, cache, forward)
        _shorten(cache, len(tokens.token_ids))
        return logits

    return run


def decoding_compiled(model: Model, work: Workload, num_tokens: int) -> Alternative:
    """Decode tokens one by one over a `StaticCache`, in the pass that transformers compiles."""
    tokens = work.tokens
    cache = static_cache(model, work, len(tokens.token_ids) + num_tokens)
    forward = compiled_forward(model)
    last_logits(model, tokens.token_ids, tokens.position_ids, cache)
    first = tokens.position_ids[-1] + 1

    def run() -> torch.Tensor:
        for position in range(first, first + num_tokens):
            logits = last_logits(model, [ord("a")], [position], cache, forward)
        _shorten(cache, num_tokens)
        return logits

    return run


def static_cache(model: Model, work: Workload, num_more: int) -> Any:
    """Return a `StaticCache` with the KV of the modules and room for `num_more` tokens."""
    capacity = work.sizes.cached_tokens + num_more
    cache: Any = StaticCache(config=model.hf.config, max_cache_len=capacity)
    for layer, views in enumerate(_parts(link(work.tokens, work.handles, model).positions.segments)):
        cache.update(*_whole(views), layer)
    return cache


def _shorten(cache: Any, num_tokens: int) -> None:
    """Drop the last tokens of a `StaticCache` whose layers have no windows, by one kernel for all layers."""
    torch._foreach_sub_([layer.cumulative_length for layer in cache.layers], num_tokens)


def compiled_forward(model: Model) -> Callable[..., Any]:
    """Return the compiled forward pass that `generate` of transformers decodes with on a GPU."""
    forward: Callable[..., Any] = model.hf.get_compiled_call(model.hf.generation_config.compile_config)
    return forward


def why_not_compiled(model: Model) -> str | None:
    """Return why the alternatives over a `StaticCache` cannot be measured here, or None."""
    if model.facts.window is not None:
        return f"a StaticCache of {model.facts.name}, which has sliding windows, cannot be used again"
    try:
        torch.compile(lambda states: states + 1)(torch.zeros(2, device=model.device))
    except (RuntimeError, OSError) as error:  # of the compiler, which it may be missing
        return f"torch.compile does not work here: {first_line(error)}"
    return None


BASELINE = "plain prefill"

ALTERNATIVES: dict[str, Callable[[Model, Workload], Alternative]] = {
    BASELINE: plain,
    "concatenate": concatenated,
    "deep copy": deep_copied,
    "prompt cache": cached,
    "first use": first_use,
    "in place": in_place,
    "link": linked,
    "floor": floor,
}
"""Alternatives by the name that tables show."""

COMPILED = "static, compiled"
"""The name of `compiled` and `decoding_compiled`, which are for GPUs: compiling takes long, and pays where starting
kernels takes most of the time.
"""


class _Rows:
    """Computes requests as an engine does after planning and fetching: one row each."""

    def __init__(self, model: Model, pool: Pool) -> None:
        self._model, self._pool = model, pool
        self._graphs = open_graphs(model)

    def logits(self, tokens: RequestTokens, handles: Mapping[Encoding, KVHandle], state: int = 0) -> torch.Tensor:
        """Return the logits `[1, 1, V]` of the last token."""
        batch = Batch(self._model, self._pool, self._graphs)
        row = batch.join(tokens, handles, state)
        return batch.step([(row, tokens.token_ids)])[None]


def _anything(positions: tuple[int, ...]) -> Encoding:
    """Return an encoding with positions and meaningless token IDs."""
    return Encoding(token_ids=positions, position_ids=positions)


_Views: TypeAlias = Sequence[tuple[torch.Tensor, torch.Tensor]]


def _parts(segments: Sequence[KVView]) -> list[_Views]:
    """Return the views of all segments, layer by layer."""
    return list(zip(*(segment.layers().by_layer for segment in segments), strict=True))


def concatenated_cache(model: Model, work: Workload) -> Any:
    """Return a new `DynamicCache` with the concatenated KV of the modules."""
    return _concatenation(_parts(link(work.tokens, work.handles, model).positions.segments))


def _concatenation(parts: Sequence[_Views]) -> Any:
    cache = DynamicCache()
    for layer, views in enumerate(parts):
        cache.update(*_whole(views), layer)
    return cache


def _whole(views: _Views) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (torch.cat(each, dim=2) for each in zip(*views, strict=True))
    return keys, values


@torch.no_grad()
def last_logits(
    model: Model, token_ids: Any, position_ids: Any, cache: Cache, forward: Callable[..., Any] | None = None
) -> torch.Tensor:
    """Run tokens through the model and return the logits of the last one, `[1, 1, V]`. The cache grows.

    Args:
        forward: The model's forward pass; None means as it is.
    """
    output = (forward or model.hf)(
        input_ids=token_tensor(token_ids, model.device),
        position_ids=token_tensor(position_ids, model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: torch.Tensor = output.logits
    return logits
