"""Encoding: the KV of runs, computed once.

Comes in: encodings and the store that may have them already. Goes out: their KV, put into the store. Runs of which each
sees exactly the one before it, and what that one sees, are computed in one causal pass and cut afterwards; runs that
see the same are batched. This file knows no XML and no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from promptcache.diagnostics import StoreError
from promptcache.kv.codec import as_kept
from promptcache.kv.keys import Recipe
from promptcache.kv.store import Store
from promptcache.kv.types import RunKV, Slab
from promptcache.layout.types import Encoding
from promptcache.runtime.attention import RequestPositions
from promptcache.runtime.concatenated import position_mask
from promptcache.runtime.hf.model import Linking, Model
from promptcache.runtime.link import whole_segments
from promptcache.runtime.segments import Segment

CHUNK_TOKENS = 2048
"""New tokens in one forward pass at most, over all rows of a batch: what bounds the memory of activations."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Encodings computed in one causal pass: each sees the ones before it in the chain, and all see `context`."""

    context: tuple[int, ...]
    links: tuple[Encoding, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens, in position order."""
        return tuple(token_id for link in self.links for token_id in link.token_ids)

    @property
    def position_ids(self) -> tuple[int, ...]:
        """As long as `token_ids`."""
        return tuple(position for link in self.links for position in link.position_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of all links."""
        return sum(len(link.token_ids) for link in self.links)


def missing_encodings(
    encodings: Sequence[Encoding], wanted: Iterable[int], is_held: Callable[[int], bool]
) -> tuple[Encoding, ...]:
    """Return what to compute for `wanted`, contexts first: whatever is not held of these and of the contexts of those.

    Args:
        is_held: Asked once for each index that is wanted or that something missing attends to.
    """
    found: set[int] = set()
    asked: set[int] = set()
    stack = list(wanted)
    while stack:
        index = stack.pop()
        if index in asked:
            continue
        asked.add(index)
        if not is_held(index):
            found.add(index)
            stack.extend(encodings[index].context)
    return tuple(encodings[index] for index in sorted(found))


def chains(missing: Sequence[Encoding]) -> tuple[Chain, ...]:
    """Cut encodings, contexts first, into chains; every encoding is in exactly one."""
    growing: dict[int, list[Encoding]] = {}  # by the index of a chain's last link
    started: list[list[Encoding]] = []
    for encoding in missing:
        before = growing.pop(encoding.context[-1], None) if encoding.context else None
        if before is not None and encoding.context != (*before[-1].context, before[-1].index):
            growing[before[-1].index] = before
            before = None
        if before is None:
            before = []
            started.append(before)
        before.append(encoding)
        growing[encoding.index] = before
    return tuple(Chain(context=links[0].context, links=tuple(links)) for links in started)


def batches(all_chains: Sequence[Chain], window: int | None) -> Iterator[tuple[Chain, ...]]:
    """Yield chains that one forward can compute together: the same context, within `CHUNK_TOKENS`, padded by a quarter
    at most.

    With sliding windows what a token sees depends on distances, so only chains at equal positions share a forward.
    """
    groups: dict[object, list[Chain]] = {}
    for each in all_chains:
        alike = each.context if window is None else (each.context, each.position_ids)
        groups.setdefault(alike, []).append(each)
    for group in groups.values():  # in the order of their first chain: a context is computed before what sees it
        batch: list[Chain] = []
        for each in sorted(group, key=lambda chain: -chain.num_tokens):
            full = batch and (len(batch) + 1) * batch[0].num_tokens > CHUNK_TOKENS
            if batch and (full or 4 * each.num_tokens < 3 * batch[0].num_tokens):
                yield tuple(batch)
                batch = []
            batch.append(each)
        yield tuple(batch)


def encode(
    model: Model,
    encodings: Sequence[Encoding],
    recipes: Sequence[Recipe],
    missing: Sequence[Encoding],
    store: Store,
    held: Mapping[str, RunKV],
) -> dict[str, RunKV]:
    """Compute the KV of `missing` and put it into the store.

    Args:
        model: Computes.
        encodings: All encodings of the schema, by index.
        recipes: Of each of them, by index.
        missing: What to compute, contexts first, as `missing_encodings` returns it.
        store: Takes each result as soon as it is there.
        held: KV of every context that is not itself missing, by key.

    Returns:
        The KV of `missing` by key.

    Raises:
        StoreError: The store did not take a result.
    """
    runs = dict(held)
    for batch in encoding_batches(model, missing, recipes):
        runs |= encode_batch(model, encodings, recipes, batch, store, runs)
    return {recipes[each.index].key: runs[recipes[each.index].key] for each in missing}


def encoding_batches(
    model: Model, missing: Sequence[Encoding], recipes: Sequence[Recipe]
) -> Iterator[tuple[Chain, ...]]:
    """Yield what `model` computes in one go, contexts before what attends to them."""
    for batch in batches(_apart(missing, recipes), model.facts.window):
        yield from [batch] if model.linking is Linking.SEGMENTED else [(chain,) for chain in batch]


@torch.no_grad()
def encode_batch(
    model: Model,
    encodings: Sequence[Encoding],
    recipes: Sequence[Recipe],
    batch: tuple[Chain, ...],
    store: Store,
    runs: Mapping[str, RunKV],
    on_fault: Callable[[str], None] | None = None,
) -> dict[str, RunKV]:
    """Compute one of `encoding_batches` and put its KV into the store; arguments and errors as for `encode`.

    Args:
        runs: KV of the batch's context, by key.
        on_fault: Called with the reason where the store did not take a result, which is returned all the same.
    """
    context = [encodings[index] for index in batch[0].context]
    segments = whole_segments(context, {each.index: runs[recipes[each.index].key] for each in context})
    made: dict[str, RunKV] = {}
    for encoding, kv in _compute(model, batch, segments):
        recipe = recipes[encoding.index]
        made[recipe.key] = _put(store, recipe, kv, on_fault)
    return made


def _apart(missing: Sequence[Encoding], recipes: Sequence[Recipe]) -> tuple[Chain, ...]:
    """Return the chains to compute; where KV is kept with loss, each encoding alone.

    In a pass of its own an encoding sees its context as the codec leaves it, whether that was computed just now or came
    from a store: inside a chain it would see what nobody else ever sees again.
    """
    if any(recipes[each.index].codec.lossy for each in missing):
        return tuple(Chain(context=each.context, links=(each,)) for each in missing)
    return chains(missing)


def _put(
    store: Store, recipe: Recipe, kv: tuple[torch.Tensor, torch.Tensor], on_fault: Callable[[str], None] | None
) -> RunKV:
    try:
        return store.put(recipe, *kv)
    except StoreError as fault:
        if on_fault is None:
            raise
        on_fault(str(fault))
        keys, values = as_kept(recipe, *kv)
        return RunKV(slab=Slab(keys=keys, values=values), start=0, stop=recipe.num_tokens)


def _compute(
    model: Model, batch: tuple[Chain, ...], context: tuple[Segment, ...]
) -> Iterator[tuple[Encoding, tuple[torch.Tensor, torch.Tensor]]]:
    longest = batch[0]
    for chain in batch:
        model.check_vocabulary(chain.token_ids)
    positions = RequestPositions(context, longest.position_ids, model.device)
    cache = model.cache(positions)
    token_ids = _padded([chain.token_ids for chain in batch], model.device)  # [B, T]
    position_ids = _padded([chain.position_ids for chain in batch], model.device)
    if model.linking is Linking.SEGMENTED:
        width = max(1, CHUNK_TOKENS // len(batch))
        for start in range(0, longest.num_tokens, width):
            model.encode(token_ids[:, start : start + width], position_ids[:, start : start + width], cache)
    else:
        model.encode(token_ids, position_ids, cache, position_mask(model, positions, longest.num_tokens))
    own = [_own_tail(layer, positions) for layer in cache.layers]
    for row, chain in enumerate(batch):
        start = 0
        for encoding in chain.links:
            stop = start + len(encoding.token_ids)
            keys = torch.stack([tail[0][row, :, start:stop] for tail in own])  # [L, Hkv, T, D]
            values = torch.stack([tail[1][row, :, start:stop] for tail in own])
            yield encoding, (keys, values)
            start = stop


def _own_tail(layer: object, positions: RequestPositions) -> tuple[torch.Tensor, torch.Tensor]:
    if hasattr(layer, "tail"):
        tail: tuple[torch.Tensor, torch.Tensor] = layer.tail()
        return tail
    return layer.keys[:, :, positions.num_cached :], layer.values[:, :, positions.num_cached :]  # type: ignore[attr-defined]


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows], dtype=torch.long, device=device)
