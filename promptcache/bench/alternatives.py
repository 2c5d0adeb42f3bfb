"""What a user would do instead: the documented recipes of transformers, and the machine's own limit.

Comes in: a workload. Goes out: functions that each take one request from nothing to the logits of its first token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache

from promptcache.bench.workload import Workload
from promptcache.kv import KVHandle, Slab
from promptcache.layout import Encoding
from promptcache.runtime import KVView, Model, Pool, RequestPositions, Segment, generate, link, token_tensor

Alternative = Callable[[], torch.Tensor]


def cached(model: Model, work: Workload) -> Alternative:
    """Link stored modules and prefill the new tokens, of a selection that was linked before: what this library does."""
    pool = Pool(model.shape)

    def run() -> torch.Tensor:
        linked = link(work.tokens, work.runs, model, pool)
        return last_logits(model, linked.token_ids, linked.position_ids, linked.cache)

    return run


def generated(model: Model, work: Workload) -> Alternative:
    """The same, through transformers' `generate` for one token: what an engine does after planning and fetching."""
    pool = Pool(model.shape)

    def run() -> torch.Tensor:
        linked = link(work.tokens, work.runs, model, pool)
        made = generate(model, linked, eos_ids=(), max_new_tokens=1, options={"do_sample": False})
        return torch.tensor(made.sequences)

    return run


def floor(model: Model, work: Workload) -> Alternative:
    """The same forward and attention over KV that lies in one contiguous tensor: the limit for any way of linking."""
    linked = link(work.tokens, work.runs, model)
    keys, values = zip(*map(_whole, _parts(linked.positions.segments)), strict=True)
    slab = Slab(keys=torch.cat(keys), values=torch.cat(values))
    positions = tuple(int(each) for segment in linked.positions.segments for each in segment.position_array())
    whole = Segment(
        runs=(KVHandle(slab=slab, start=0, stop=len(positions)),),
        start=0,
        stop=len(positions),
        parts=(_anything(positions).whole,),
    )

    def run() -> torch.Tensor:
        cache = model.cache(RequestPositions((whole,), linked.position_ids, model.device))
        return last_logits(model, linked.token_ids, linked.position_ids, cache)

    return run


def plain(model: Model, work: Workload) -> Alternative:
    """Prefill everything, modules and new tokens, as without any cache."""
    tokens = [token_id for part in work.tokens.parts for token_id in part.token_ids]
    tokens.extend(work.tokens.token_ids)

    def run() -> torch.Tensor:
        return last_logits(model, tokens, range(len(tokens)), DynamicCache())

    return run


def concatenated(model: Model, work: Workload) -> Alternative:
    """Concatenate the modules' KV into a new `DynamicCache`, then prefill the new tokens."""
    linked = link(work.tokens, work.runs, model)
    parts = _parts(linked.positions.segments)

    def run() -> torch.Tensor:
        return last_logits(model, linked.token_ids, linked.position_ids, _concatenation(parts))

    return run


def deep_copied(model: Model, work: Workload) -> Alternative:
    """Deep-copy a `DynamicCache` that was filled once for exactly this selection, then prefill the new tokens."""
    linked = link(work.tokens, work.runs, model)
    filled: Any = DynamicCache()
    for layer, views in enumerate(_parts(linked.positions.segments)):
        filled.update(*_whole(views), layer)

    def run() -> torch.Tensor:
        return last_logits(model, linked.token_ids, linked.position_ids, copy.deepcopy(filled))

    return run


def decoding(model: Model, work: Workload, name: str, num_tokens: int) -> Alternative:
    """Decode `num_tokens` after the request's own, one at a time, over linked KV or over a concatenated `DynamicCache`.

    Each call goes on where a request stood after its prefill: the prefill is not part of what is measured.
    """
    linked = link(work.tokens, work.runs, model)
    parts = _parts(linked.positions.segments)
    prefilled: Any = linked.cache if name == "prompt cache" else _concatenation(parts)
    last_logits(model, linked.token_ids, linked.position_ids, prefilled)

    def run() -> torch.Tensor:
        position = linked.position_ids[-1]
        for step in range(num_tokens):
            logits = last_logits(model, [ord("a")], [position + 1 + step], prefilled)
        prefilled.crop(-num_tokens)
        return logits

    return run


BASELINE = "plain prefill"

ALTERNATIVES: dict[str, Callable[[Model, Workload], Alternative]] = {
    BASELINE: plain,
    "concatenate": concatenated,
    "deep copy": deep_copied,
    "prompt cache": cached,
    "generate": generated,
    "floor": floor,
}
"""Every alternative by the name that tables show."""


def _anything(positions: tuple[int, ...]) -> Encoding:
    """Return an encoding that says of its tokens only where they stand."""
    return Encoding(token_ids=positions, position_ids=positions)


_Views: TypeAlias = Sequence[tuple[torch.Tensor, torch.Tensor]]


def _parts(segments: Sequence[KVView]) -> list[_Views]:
    """Return for each layer the views of all segments."""
    return list(zip(*(segment.layers().by_layer for segment in segments), strict=True))


def concatenated_cache(model: Model, work: Workload) -> Any:
    """Return a new `DynamicCache` with the modules' KV, as a user would concatenate it."""
    return _concatenation(_parts(link(work.tokens, work.runs, model).positions.segments))


def _concatenation(parts: Sequence[_Views]) -> Any:
    cache = DynamicCache()
    for layer, views in enumerate(parts):
        cache.update(*_whole(views), layer)
    return cache


def _whole(views: _Views) -> tuple[torch.Tensor, torch.Tensor]:
    keys, values = (torch.cat(each, dim=2) for each in zip(*views, strict=True))
    return keys, values


@torch.no_grad()
def last_logits(model: Model, token_ids: Any, position_ids: Any, cache: Cache) -> torch.Tensor:
    """Feed tokens at positions and return the logits of the last, `[1, 1, V]`; the cache grows."""
    output = model.hf(
        input_ids=token_tensor(token_ids, model.device),
        position_ids=token_tensor(position_ids, model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: torch.Tensor = output.logits
    return logits
