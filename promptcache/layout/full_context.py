"""Plans in full context: each stored part has attended to all parts in use before it.

The encodings of these parts form a trie: plans whose first parts are equal share the encodings of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptcache.layout.encoding import Encoding, KVPart
from promptcache.layout.pieces import Origin, Plan
from promptcache.layout.types import Level


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
    return plan.level is Level.MODULAR and plan.pieces[0].source is not None


def combination(plan: Plan, salt: str | None = None) -> CombinationParts:
    """Return what a plan with a combination has up to its last reused token.

    Args:
        salt: Requests with arguments have equal combinations only if their salts are equal.
    """
    last = max(index for index, piece in enumerate(plan.pieces) if piece.source is not None)
    return tuple(
        piece.source or InnerTokens(piece.start, piece.token_ids, salt if piece.origin is Origin.ARGUMENT else None)
        for piece in plan.pieces[: last + 1]
    )


def in_full_context(items: CombinationParts) -> tuple[KVPart, ...]:
    """Return parts with the tokens and positions of a combination, each encoded behind those before it.

    The first parts, which are exact already, stay. Each other part is a whole encoding.
    """
    first = items[0]
    assert isinstance(first, KVPart), "a combination begins with stored KV"
    found: list[KVPart] = []
    for each in items:  # parts that are exact already
        if not isinstance(each, KVPart) or each.start or each.shift or each.encoding.context != tuple(found):
            break
        found.append(each)
    for each in items[len(found) :]:
        encoding = Encoding(
            token_ids=each.token_ids,
            position_ids=each.position_ids,
            context=tuple(found),
            codec=first.encoding.codec,
        )
        found.append(encoding.whole)
    return tuple(found)


def exact_plan(plan: Plan, parts: Sequence[KVPart]) -> Plan:
    """Return a plan with its combination in full context. All tokens stay where they are.

    Args:
        plan: A plan with a combination.
        parts: The result of `in_full_context` for it.
    """
    exact = (replace(piece, source=part) for piece, part in zip(plan.pieces, parts, strict=False))
    return replace(plan, pieces=(*exact, *plan.pieces[len(parts) :]))
