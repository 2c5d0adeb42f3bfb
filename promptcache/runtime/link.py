"""Linking: from a plan and stored KV to a cache that a forward pass can start from, without copying.

Comes in: a plan, and the KV of the encodings that it reuses. Goes out: the new tokens with their positions, and a cache
whose segments are views. Neighbours by address become one view, whatever their origin. This file knows no store and no
XML.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcache.kv.types import RunKV
from promptcache.layout.types import Encoding, Plan
from promptcache.runtime.attention import RequestPositions
from promptcache.runtime.coalesce import Pool
from promptcache.runtime.hf.model import Linking, Model
from promptcache.runtime.segments import Part, Segment


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


def link(plan: Plan, runs: Mapping[int, RunKV], model: Model, pool: Pool | None = None) -> Linked:
    """Put the stored KV of a plan and its new tokens together.

    Args:
        plan: Of one prompt.
        runs: KV by encoding index, at least for every encoding that the plan reuses.
        model: Decides the kind of cache.
        pool: Where small segments are coalesced; None leaves them as they are.
    """
    token_ids, position_ids = new_tokens(plan)
    model.check_vocabulary(token_ids)
    segments = segments_of(plan, runs)
    num_copied = 0
    if model.linking is Linking.CONCATENATED:
        num_copied = sum(segment.num_tokens for segment in segments)
    elif pool is not None:
        segments, num_copied = pool.coalesce(segments, new_starts(plan))
    positions = RequestPositions(segments, position_ids, model.device)
    return Linked(
        cache=model.cache(positions),
        positions=positions,
        token_ids=token_ids,
        position_ids=position_ids,
        copied_bytes=num_copied * model.shape.token_bytes,
    )


def new_tokens(plan: Plan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the new tokens of a plan and their positions, in position order."""
    token_ids = tuple(token_id for prefill in plan.prefill for token_id in prefill.token_ids)
    return token_ids, tuple(position for prefill in plan.prefill for position in range(prefill.start, prefill.stop))


def new_starts(plan: Plan) -> list[int]:
    """Return the positions at which stretches of new tokens start, in order."""
    return [prefill.start for prefill in plan.prefill]


def segments_of(plan: Plan, runs: Mapping[int, RunKV]) -> tuple[Segment, ...]:
    """Return the views that a plan reuses: neighbours in memory as one, parted where a new token stands between."""
    views = (
        (runs[reuse.encoding], Part(plan.encodings[reuse.encoding], reuse.start, reuse.stop)) for reuse in plan.reuse
    )
    return tuple(_joined(views, new_starts(plan)))


def whole_segments(encodings: Iterable[Encoding], runs: Mapping[int, RunKV]) -> tuple[Segment, ...]:
    """Return views of whole encodings, fillers included, neighbours as one: what a run that is being encoded sees."""
    views = ((runs[each.index], Part(each, 0, len(each.token_ids))) for each in encodings)
    return tuple(_joined(views, []))


def _joined(views: Iterable[tuple[RunKV, Part]], starts: Sequence[int]) -> Iterator[Segment]:
    """Join neighbours; `starts` are positions of new tokens, in order, at which a view has to end."""
    held: list[tuple[RunKV, Part]] = []
    upcoming = 0
    for run, part in views:
        if held:
            before, last = held[-1]
            while upcoming < len(starts) and starts[upcoming] < last.last:
                upcoming += 1
            parted = upcoming < len(starts) and starts[upcoming] < part.first
            touching = before.slab is run.slab and before.start + last.stop == run.start + part.start
            if parted or not touching:
                yield _segment(held)
                held = []
        held.append((run, part))
    if held:
        yield _segment(held)


def _segment(views: Sequence[tuple[RunKV, Part]]) -> Segment:
    runs, parts = zip(*views, strict=True)
    return Segment(runs=runs, start=runs[0].start + parts[0].start, stop=runs[-1].start + parts[-1].stop, parts=parts)
