"""Repair: the stored tokens of a prompt to compute again, because they have not attended to all tokens before them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from promptcache.language import Repair, RepairKind
from promptcache.layout.pieces import Piece, num_exact


def positions_to_repair(pieces: Sequence[Piece], repair: Repair, weights: Sequence[float] = ()) -> frozenset[int]:
    """Return the positions of the stored tokens of a prompt that are computed again.

    Args:
        pieces: In position order.
        repair: `all` computes every token again, beginning with the first one that has not attended to exactly the
            tokens in use before it. `attended-K` computes again those from there on that weigh most: K for each run
            that has some. `first-K` computes the first K tokens of each run again, beginning with the first run whose
            context is not exactly the tokens in use before it. Others change nothing here.
        weights: For `attended-K`, how much the new tokens attend to each position. Without them, it changes nothing.
    """
    index = num_exact(pieces)
    is_known = repair.kind in (RepairKind.FIRST, RepairKind.ALL) or (repair.kind is RepairKind.ATTENDED and weights)
    if not is_known or index == len(pieces):
        return frozenset()
    if repair.kind is RepairKind.FIRST and _is_context_exact(pieces, index):
        run = pieces[index].run
        index = next((later for later in range(index, len(pieces)) if pieces[later].run is not run), len(pieces))
    candidates, found = list[int](), list[int]()
    stored = (piece for piece in pieces[index:] if piece.source is not None)
    for _, group in groupby(stored, key=attrgetter("run.index")):
        positions = [position for piece in group for position in piece.position_ids]
        candidates += positions
        found += positions[: repair.num_again(len(positions))]
    if repair.kind is RepairKind.ATTENDED:
        found = sorted(candidates, key=lambda position: -weights[position])[: len(found)]  # equal ones stay in order
    return frozenset(found)


def _is_context_exact(pieces: Sequence[Piece], index: int) -> bool:
    """Whether the run of a stored piece attended to exactly the tokens in use before the run, at their distances."""
    piece = pieces[index]
    assert piece.source is not None, "the piece is stored"
    before = tuple(each.source for each in pieces[:index] if each.run is not piece.run)
    return piece.source.encoding.context == before
