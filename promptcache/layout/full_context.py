"""Plans in full context: each stored part has attended to all parts in use before it.

The encodings of these parts form a trie: plans whose first parts are equal share the encodings of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptcache.layout.encoding import Encoding, KVPart
from promptcache.layout.repair import num_exact
from promptcache.layout.types import Layout, Level, Origin, Plan, Prefill, Reuse


@dataclass(frozen=True, slots=True)
class InnerTokens:
    """New tokens of a plan below a reused token: contents of slots, and text that is computed again.

    Attributes:
        start: Position of the first token.
        salt: The salt of the request if they are an argument, else None.
    """

    start: int
    token_ids: tuple[int, ...]
    salt: str | None = None

    @property
    def position_ids(self) -> tuple[int, ...]:
        """Position of each token."""
        return tuple(range(self.start, self.start + len(self.token_ids)))


CombinationParts: TypeAlias = tuple[KVPart | InnerTokens, ...]
"""All tokens of a plan up to the last reused one, in position order."""


def has_combination(plan: Plan) -> bool:
    """Return whether a plan reuses modular KV, and begins with stored KV."""
    return plan.level is Level.MODULAR and plan.reuse[0].part.first < plan.prefill[0].start


def combination(plan: Plan, salt: str | None = None) -> CombinationParts:
    """Return what a plan with a combination has up to its last reused token.

    Args:
        salt: Requests with arguments have equal combinations only if their salts are equal.
    """
    last = plan.reuse[-1].part.last
    new = {
        each.start: InnerTokens(each.start, each.token_ids, salt if each.origin is Origin.ARGUMENT else None)
        for each in plan.prefill
        if each.start < last
    }
    if not new:
        return tuple(each.part for each in plan.reuse)
    items = {each.part.first: each.part for each in plan.reuse} | new
    return tuple(items[position] for position in sorted(items))


def in_full_context(items: CombinationParts) -> tuple[KVPart, ...]:
    """Return parts with the tokens and positions of a combination, each encoded behind those before it.

    The first parts, which are exact already, stay. Each other part is a whole encoding.
    """
    stored = [each for each in items if isinstance(each, KVPart)]
    first_new = next((number for number, each in enumerate(items) if isinstance(each, InnerTokens)), len(items))
    found = stored[: num_exact(stored[:first_new], ())]
    for each in items[len(found) :]:
        encoding = Encoding(
            token_ids=each.token_ids,
            position_ids=each.position_ids,
            context=tuple(found),
            codec=stored[0].encoding.codec,
        )
        found.append(encoding.whole)
    return tuple(found)


def exact_plan(plan: Plan, parts: Sequence[KVPart]) -> Plan:
    """Return a plan with its combination in full context. All tokens stay where they are.

    Args:
        plan: A plan with a combination.
        parts: The result of `in_full_context` for it.
    """
    reused = {each.part.first: each for each in plan.reuse}
    new = {each.start: each for each in plan.prefill}
    reuse = []
    for part in parts:
        old = reused.get(part.first)
        if old is None:
            reuse.append(_reuse_of(new[part.first], part, plan.layout))
        elif old.part == part:
            reuse.append(old)
        else:
            reuse.append(replace(old, part=part, own_places=old.places(plan.layout)))
    last = parts[-1].last
    prefill = tuple(each for each in plan.prefill if each.start > last)
    return replace(plan, reuse=tuple(reuse), prefill=prefill, level=Level.EXACT)


def _reuse_of(new: Prefill, part: KVPart, layout: Layout) -> Reuse:
    """Return the reuse of tokens that were new. Boundary tokens are at places of the slot before them."""
    runs = layout.runs_of[new.module]
    run = next((index for index in runs if layout.runs[index].start <= new.place < layout.runs[index].stop), runs[0])
    return Reuse(part=part, run=run, own_places=tuple(range(new.place, new.place_stop)))
