"""Encoding: compute the KV of encodings with the model.

Encodings of which each extends the context of the one before it are computed in one causal pass and cut afterwards.
Encodings with the same context are batched. This file knows no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from promptcache.diagnostics import StoreError
from promptcache.kv import Codec, KVHandle, Recipe, Slab, Store, apply_codec
from promptcache.layout import Encoding, KVPart
from promptcache.runtime.attention import RequestPositions
from promptcache.runtime.coalesce import views_only
from promptcache.runtime.finite import are_finite
from promptcache.runtime.hf.linking import StopCheck
from promptcache.runtime.hf.model import Model
from promptcache.runtime.segments import segments_of

CHUNK_TOKENS = 2048
"""Maximum number of new tokens in one forward pass, over all rows of a batch; limits the memory of activations."""

CHECKED_TOKENS = 256
"""The same for a pass that may end early: a layer takes less time, and so does the wait for its end."""

Progress = Callable[[int, int], None]
"""Called with the number of tokens done so far, and the number of all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Encodings computed in one causal pass: each attends to `context` and to the encodings before it in the chain."""

    context: tuple[KVPart, ...]
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
        """The number of tokens of all links."""
        return sum(link.num_tokens for link in self.links)


def missing_encodings(wanted: Iterable[Encoding], is_held: Callable[[Encoding], bool]) -> tuple[Encoding, ...]:
    """Return the encodings to compute for `wanted`, contexts first: missing ones and their missing contexts.

    Args:
        is_held: Called once for each wanted encoding and for each context of a missing one.
    """
    asked: dict[Encoding, bool] = {}
    found: dict[Encoding, None] = {}
    stack = [iter(wanted)]
    path: list[Encoding] = []  # the encodings whose contexts are being visited
    while stack:
        encoding = next(stack[-1], None)
        if encoding is None:
            stack.pop()
            if path:
                found[path.pop()] = None
        elif encoding not in asked:
            asked[encoding] = is_held(encoding)
            if not asked[encoding]:
                path.append(encoding)
                stack.append(part.encoding for part in encoding.context)
    return tuple(found)


def chains(missing: Sequence[Encoding]) -> tuple[Chain, ...]:
    """Group encodings into chains; every encoding is in exactly one. Contexts come first, as in `missing`."""
    growing: dict[Encoding, list[Encoding]] = {}  # by a chain's last link
    started: list[list[Encoding]] = []
    for encoding in missing:
        last = encoding.context[-1].encoding if encoding.context else None
        links = growing.get(last) if last is not None else None
        if links is None or last is None or encoding.context != (*last.context, last.whole):
            links = []
            started.append(links)
        else:
            del growing[last]
        links.append(encoding)
        growing[encoding] = links
    return tuple(Chain(context=links[0].context, links=tuple(links)) for links in started)


def batches(all_chains: Sequence[Chain], window: int | None) -> Iterator[tuple[Chain, ...]]:
    """Yield batches of chains that one forward pass can compute together.

    The chains of a batch have the same context, fit into `CHUNK_TOKENS`, and need at most a quarter of padding. With
    sliding windows the mask depends on distances, so only chains at equal positions share a forward pass.
    """
    groups: dict[object, list[Chain]] = {}
    for each in all_chains:
        context = each.links[0].context_digest
        alike = context if window is None else (context, each.position_ids)
        groups.setdefault(alike, []).append(each)
    for group in groups.values():  # a context's first chain comes before its dependants
        batch: list[Chain] = []
        for each in sorted(group, key=lambda chain: -chain.num_tokens):
            full = batch and (len(batch) + 1) * batch[0].num_tokens > CHUNK_TOKENS
            if batch and (full or 4 * each.num_tokens < 3 * batch[0].num_tokens):
                yield tuple(batch)
                batch = []
            batch.append(each)
        yield tuple(batch)


def encoding_batches(model: Model, missing: Sequence[Encoding]) -> Iterator[tuple[Chain, ...]]:
    """Yield the chains that `model` computes in one forward pass, contexts before their dependants.

    With a lossy codec each encoding is computed by itself. It then attends to its context as the codec stores it,
    whether the context was just computed or comes from a store.
    """
    if any(Codec(each.codec).lossy for each in missing):
        found: Sequence[Chain] = tuple(Chain(context=each.context, links=(each,)) for each in missing)
    else:
        found = chains(missing)
    for batch in batches(found, model.facts.window):
        yield from [batch] if model.linking.takes_rows else [(chain,) for chain in batch]


@torch.no_grad()
def compute(
    model: Model, batch: Sequence[Chain], held: Mapping[Encoding, KVHandle], check: StopCheck | None = None
) -> Iterator[tuple[Encoding, tuple[torch.Tensor, torch.Tensor]]]:
    """Run one batch of chains through the model; yield each encoding with keys and values, each `[L, Hkv, T, D]`.

    Args:
        held: KV of all encodings in the context of the batch.
        check: Called in each layer of each forward pass. What it raises ends the computation.

    Raises:
        NotFinite: Some of the KV is not finite. In one causal pass, its tokens may have spoiled those before them.
    """
    longest = batch[0]
    for chain in batch:
        model.check_vocabulary(chain.token_ids)
    context, _ = views_only(model).move(segments_of(longest.context, held), model.state)
    positions = RequestPositions(context, longest.position_ids)
    token_ids = _padded([chain.token_ids for chain in batch], model.device)  # [B, T]
    position_ids = _padded([chain.position_ids for chain in batch], model.device)
    chunk_tokens = max(1, (CHUNK_TOKENS if check is None else CHECKED_TOKENS) // len(batch))
    cache = model.linking.encode(model, token_ids, position_ids, positions, chunk_tokens, check)
    own = [model.linking.own_kv(layer, positions) for layer in cache.layers]
    if not are_finite(states for layer in own for states in layer):
        raise model.not_finite(
            f"the keys or values of the text at positions {longest.position_ids[0]} to {longest.position_ids[-1]}"
        )
    for row, chain in enumerate(batch):
        start = 0
        for encoding in chain.links:
            stop = start + encoding.num_tokens
            keys = torch.stack([tail[0][row, :, start:stop] for tail in own])  # [L, Hkv, T, D]
            values = torch.stack([tail[1][row, :, start:stop] for tail in own])
            yield encoding, (keys, values)
            start = stop


def stored(
    store: Store, recipe: Recipe, kv: tuple[torch.Tensor, torch.Tensor], on_fault: Callable[[str], None]
) -> KVHandle:
    """Put keys and values into a store and return their handle.

    If the store refuses them, `on_fault` is called with the reason, and the handle owns its memory.
    """
    try:
        return store.put(recipe, *kv)
    except StoreError as fault:
        on_fault(str(fault))
        keys, values = apply_codec(recipe, *kv)
        return KVHandle(slab=Slab(keys=keys, values=values), start=0, stop=recipe.num_tokens)


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows], dtype=torch.long, device=device)
