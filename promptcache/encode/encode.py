"""Encoding: compute the KV of encodings with the model.

Encodings form a chain if each extends the context of the one before it. A chain is computed in one causal pass, and its
KV is cut into encodings afterwards. Chains share forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import torch

from promptcache.kv import KV, Codec
from promptcache.layout import Encoding, RequestTokens
from promptcache.model import Model
from promptcache.rows import Batch, StopCheck, are_finite
from promptcache.settings import MAX_STEP_TOKENS

CHUNK_TOKENS = MAX_STEP_TOKENS
"""Maximum number of new tokens in one forward pass, over all rows; limits the memory of activations."""

CHECKED_TOKENS = 256
"""The same for a pass that may end early: a layer takes less time, so a request waits less."""

Progress = Callable[[int, int], None]
"""Called with the number of tokens done so far, and the number of all tokens."""

_Item = TypeVar("_Item")

Chain: TypeAlias = tuple[Encoding, ...]
"""Encodings computed in one causal pass: each attends to the context of the first one and to those before it."""


def num_tokens_of(chain: Chain) -> int:
    """Return the number of tokens of all encodings of a chain."""
    return sum(each.num_tokens for each in chain)


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
    return tuple(map(tuple, started))


def encoding_batches(missing: Sequence[Encoding]) -> Iterator[tuple[Chain, ...]]:
    """Yield batches of chains that one forward pass can compute together, contexts first.

    No chain of a batch is the context of another one. A batch has at most `CHUNK_TOKENS` tokens, or one chain.

    With a lossy codec each encoding is computed by itself. It then attends to its context as the codec stores it,
    whether the context was just computed or comes from a store.
    """
    is_lossy = any(Codec(each.codec).lossy for each in missing)
    waves: dict[int, list[Chain]] = {}
    wave_of: dict[Encoding, int] = {}
    for chain in [(each,) for each in missing] if is_lossy else chains(missing):
        wave = 1 + max((wave_of.get(part.encoding, 0) for part in chain[0].context), default=0)
        wave_of.update(dict.fromkeys(chain, wave))
        waves.setdefault(wave, []).append(chain)
    for _, wave_chains in sorted(waves.items()):
        yield from grouped(wave_chains, num_tokens_of, CHUNK_TOKENS)


def grouped(items: Iterable[_Item], num_tokens: Callable[[_Item], int], limit: int) -> Iterator[tuple[_Item, ...]]:
    """Cut items, in order, into groups of at most `limit` tokens. An item that has more is a group by itself."""
    group, total = list[_Item](), 0
    for item in items:
        if group and total + num_tokens(item) > limit:
            yield tuple(group)
            group, total = [], 0
        group.append(item)
        total += num_tokens(item)
    if group:
        yield tuple(group)


@torch.no_grad()
def compute(
    model: Model, batch: Sequence[Chain], held: Mapping[Encoding, KV], check: StopCheck | None = None
) -> Iterator[tuple[Encoding, tuple[torch.Tensor, torch.Tensor]]]:
    """Compute one batch of chains; yield each encoding with views of its keys and values `[L, Hkv, T, D]`.

    Args:
        held: KV of all encodings in the context of the batch.
        check: Called in each layer of each forward pass. What it raises ends the computation.

    Raises:
        NotFinite: Some of the KV is not finite. In one causal pass, a NaN may reach the tokens before it.
    """
    rows = Batch(model)
    joined = [rows.join(_tokens(chain), held) for chain in batch]
    chunk_tokens = CHUNK_TOKENS if check is None else CHECKED_TOKENS
    for start in range(0, max(map(num_tokens_of, batch)), chunk_tokens):
        chunks = ((row, row.tokens.token_ids[start : start + chunk_tokens]) for row in joined)
        rows.encode([(row, token_ids) for row, token_ids in chunks if token_ids], check)
    computed = [rows.own_kv(row) for row in joined]
    for row, own in zip(joined, computed, strict=True):
        if not are_finite((own.keys, own.values)):
            positions = row.tokens.position_ids
            raise model.not_finite(f"the keys or values of the text at positions {positions[0]} to {positions[-1]}")
    for chain, own in zip(batch, computed, strict=True):
        start = 0
        for encoding in chain:
            stop = start + encoding.num_tokens
            yield encoding, (own.keys[:, :, start:stop], own.values[:, :, start:stop])
            start = stop


def _tokens(chain: Chain) -> RequestTokens:
    """Return a chain as a request without a prompt."""
    return RequestTokens(
        parts=chain[0].context,
        token_ids=tuple(token_id for each in chain for token_id in each.token_ids),
        position_ids=tuple(position for each in chain for position in each.position_ids),
    )
