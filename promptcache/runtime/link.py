"""Linking: from stored KV to a cache that a forward pass can start from, without copying.

Comes in: the tokens of a request, and the KV of the encodings that it has parts of. Goes out: a cache whose segments
are views. Neighbours in memory become one view, whichever schema or request they come from. This file knows no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from promptcache.kv import KVHandle
from promptcache.layout import Encoding, KVPart, RequestTokens
from promptcache.runtime.attention import RequestPositions
from promptcache.runtime.coalesce import Pool
from promptcache.runtime.hf.model import Model
from promptcache.runtime.segments import Segment, is_parted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linked:
    """Stored KV and new tokens, ready for one request. Its cache is private to the request; the segments are shared.

    Attributes:
        cache: A transformers cache that holds `positions.num_cached` tokens.
        token_ids: New tokens in position order; never empty.
        position_ids: As long as `token_ids`, strictly increasing; generation continues after the last.
        copied_bytes: KV that had to be copied: small segments that were coalesced, or everything by concatenation.
    """

    cache: Any
    positions: RequestPositions
    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    copied_bytes: int


def link(tokens: RequestTokens, runs: Mapping[Encoding, KVHandle], model: Model, pool: Pool | None = None) -> Linked:
    """Put the stored KV and the new tokens of a request together.

    Args:
        tokens: Of one request.
        runs: KV of at least every encoding that the request has parts of.
        model: Decides the kind of cache.
        pool: Where small segments are coalesced; None leaves them as they are.
    """
    model.check_vocabulary(tokens.token_ids)
    coalesce = None if pool is None else partial(pool.coalesce, new_positions=tokens.position_ids)
    segments, num_copied = model.linking.place(segments_of(tokens.parts, runs, tokens.position_ids), coalesce)
    positions = RequestPositions(segments, tokens.position_ids, model.device)
    return Linked(
        cache=model.cache(positions),
        positions=positions,
        token_ids=tokens.token_ids,
        position_ids=tokens.position_ids,
        copied_bytes=num_copied * model.shape.token_bytes,
    )


def segments_of(
    parts: Iterable[KVPart], runs: Mapping[Encoding, KVHandle], new_positions: Sequence[int] = ()
) -> tuple[Segment, ...]:
    """Return views of stored KV: neighbours in memory as one, unless a new token lies between them.

    Args:
        parts: In position order.
        runs: KV of their encodings.
        new_positions: Positions of new tokens, in order.
    """
    return tuple(_joined(((runs[part.encoding], part) for part in parts), new_positions))


def _joined(views: Iterable[tuple[KVHandle, KVPart]], new_positions: Sequence[int]) -> Iterator[Segment]:
    held: list[tuple[KVHandle, KVPart]] = []
    for run, part in views:
        assert part.shift == 0, "stored KV stays at its own positions"
        if held:
            before, last = held[-1]
            touching = before.slab is run.slab and before.start + last.stop == run.start + part.start
            if not touching or is_parted(last.last, part.first, new_positions):
                yield _segment(held)
                held = []
        held.append((run, part))
    if held:
        yield _segment(held)


def _segment(views: Sequence[tuple[KVHandle, KVPart]]) -> Segment:
    runs, parts = zip(*views, strict=True)
    return Segment(runs=runs, start=runs[0].start + parts[0].start, stop=runs[-1].start + parts[-1].stop, parts=parts)
