"""Repair: the stored tokens of a prompt to compute again, because they have not attended to all tokens before them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from promptcache.language import Repair, RepairKind
from promptcache.layout.pieces import Piece, num_exact


def positions_to_repair(pieces: Sequence[Piece], repair: Repair) -> frozenset[int]:
    """Return the positions of the stored tokens of a prompt that are computed again.

    Args:
        pieces: In position order.
        repair: `all` computes every token again, beginning with the first one that has not attended to exactly the
            tokens in use before it. `first-K` computes the first K tokens of each run again, beginning with the first
            run whose context is not exactly the tokens in use before it. Others change nothing here.
    """
    index = num_exact(pieces)
    if repair.kind not in (RepairKind.FIRST, RepairKind.ALL) or index == len(pieces):
        return frozenset()
    if repair.kind is RepairKind.FIRST and _is_context_exact(pieces, index):
        run = pieces[index].run
        index = next((later for later in range(index, len(pieces)) if pieces[later].run is not run), len(pieces))
    found: list[int] = []
    stored = (piece for piece in pieces[index:] if piece.source is not None)
    for _, group in groupby(stored, key=attrgetter("run.index")):
        positions = [position for piece in group for position in piece.position_ids]
        found += positions[: repair.first_tokens(len(positions))]
    return frozenset(found)


def _is_context_exact(pieces: Sequence[Piece], index: int) -> bool:
    """Whether the run of a stored piece attended to exactly the tokens in use before the run, at their distances."""
    piece = pieces[index]
    assert piece.source is not None, "the piece is stored"
    before = tuple(each.source for each in pieces[:index] if each.run is not piece.run)
    return piece.source.encoding.context == before
