"""Repair: compute stored tokens again, because they have not attended to all tokens in use before them.

The level of a plan follows from the same question: from which token on is the stored KV not that of one causal pass?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from promptcache.language import Repair, RepairKind
from promptcache.layout.encoding import KVPart
from promptcache.layout.types import Layout, Level, Origin, Plan, Prefill, Reuse


def repaired(
    reuse: Sequence[Reuse], prefill: Sequence[Prefill], layout: Layout, repair: Repair
) -> tuple[list[Reuse], list[Prefill]]:
    """Return reused and new tokens of a prompt after repair. Arguments and results are in position order.

    Args:
        repair: `all` computes every token again, beginning with the first one that has not attended to exactly the
            tokens in use before it. `first-K` computes the first K tokens of each run again, beginning with the first
            run whose context is not exactly the tokens in use before it. Others change nothing here.
    """
    parts = [each.part for each in reuse]
    index = num_exact(parts, prefill)
    if repair.kind not in (RepairKind.FIRST, RepairKind.ALL) or index == len(reuse):
        return list(reuse), list(prefill)
    num_first = {part: part.num_tokens for part in parts[index:]}
    if repair.kind is RepairKind.FIRST:
        if _is_context_exact(index, reuse, prefill, layout):
            run = reuse[index].run
            index = next((later for later in range(index, len(reuse)) if reuse[later].run != run), len(reuse))
        num_first = dict(_shared_out(reuse[index:], repair))
    return _recomputed(reuse, prefill, num_first, layout)


def recompute(plan: Plan, num_tokens: Mapping[int, int]) -> Plan:
    """Return a plan that computes more stored tokens again, at their own positions.

    Args:
        num_tokens: For runs, by index in the layout, the number of reused tokens to compute again, from the first on.
    """
    left = dict(num_tokens)
    num_first: dict[KVPart, int] = {}
    for each in plan.reuse:
        num_first[each.part] = min(left.get(each.run, 0), each.part.num_tokens)
        left[each.run] = left.get(each.run, 0) - num_first[each.part]
    reuse, prefill = _recomputed(plan.reuse, plan.prefill, num_first, plan.layout)
    level = level_of([each.part for each in reuse], prefill)
    return replace(plan, reuse=tuple(reuse), prefill=tuple(prefill), level=level)


def level_of(parts: Sequence[KVPart], prefill: Sequence[Prefill]) -> Level:
    """Return `exact` if and only if every reused token attended to exactly the used tokens at lower positions."""
    return Level.EXACT if num_exact(parts, prefill) == len(parts) else Level.MODULAR


def num_exact(parts: Sequence[KVPart], prefill: Sequence[Prefill]) -> int:
    """Return the number of parts before the first one that has not attended to exactly the used tokens below it.

    Args:
        parts: In position order; the range of an encoding is split only at tokens left out or at new tokens.
        prefill: In position order.

    The tokens of an encoding attended to its whole context and to all lower tokens of the encoding. So a part is exact
    under three conditions:

    - No new token is below its last one.
    - It begins its encoding, and stands where it was encoded.
    - The context of its encoding is the list of used parts before it.

    Otherwise the encoding attended to tokens that are not in use (a superseded state, a filler), or did not attend
    to tokens that are.
    """
    for index, part in enumerate(parts):
        context = part.encoding.context
        is_first = part.start == part.shift == 0 and len(context) == index and context == tuple(parts[:index])
        if not is_first or (prefill and prefill[0].start < part.last):
            return index
    return len(parts)


def _is_context_exact(index: int, reuse: Sequence[Reuse], prefill: Sequence[Prefill], layout: Layout) -> bool:
    """Whether the run of `reuse[index]` attended to exactly the tokens in use before the run, at their distances."""
    run = reuse[index].run
    before = tuple(each.part for each in reuse[:index] if each.run != run)
    has_new = bool(prefill) and prefill[0].place < layout.runs[run].start
    return not has_new and reuse[index].part.encoding.context == before


def _shared_out(reuse: Sequence[Reuse], repair: Repair) -> Iterator[tuple[KVPart, int]]:
    """Yield each part with the number of its first tokens that `first-K` computes again."""
    for _, parts in groupby(reuse, key=attrgetter("run")):
        run = [each.part for each in parts]
        left = repair.first_tokens(sum(part.num_tokens for part in run))
        for part in run:
            yield part, min(left, part.num_tokens)
            left = max(0, left - part.num_tokens)


def _recomputed(
    reuse: Sequence[Reuse], prefill: Sequence[Prefill], num_first: Mapping[KVPart, int], layout: Layout
) -> tuple[list[Reuse], list[Prefill]]:
    """Return reused and new tokens with the first tokens of some parts moved from one to the other."""
    kept: list[Reuse] = []
    new = list(prefill)
    for each in reuse:
        part, num_tokens = each.part, num_first.get(each.part, 0)
        if num_tokens == 0:
            kept.append(each)
            continue
        again = replace(each, part=replace(part, stop=part.start + num_tokens))
        new.extend(_prefill(again, layout))
        if num_tokens < part.num_tokens:
            kept.append(replace(each, part=replace(part, start=part.start + num_tokens)))
    return kept, sorted(new, key=attrgetter("start"))


def _prefill(reuse: Reuse, layout: Layout) -> Iterator[Prefill]:
    """Yield reused tokens as new ones; a slot that its filler does not fill leaves a gap."""
    part, places, start = reuse.part, reuse.places(layout), 0
    for index in range(1, len(places) + 1):
        if index == len(places) or places[index] != places[index - 1] + 1:
            yield Prefill(
                start=part.position_ids[start],
                place=places[start],
                token_ids=part.token_ids[start:index],
                origin=Origin.REPAIRED,
                module=layout.runs[reuse.run].module,
            )
            start = index
