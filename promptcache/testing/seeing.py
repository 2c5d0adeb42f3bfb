"""The definition of the level `exact`, token by token and in quadratic time.

Comes in: a plan. Goes out: the level that it must carry. This file trusts nothing of a plan but its tokens.
"""

from __future__ import annotations

from promptcache.layout import Encoding, Level, Plan

_Token = tuple[Encoding, int]  # with the index of the token


def true_level(plan: Plan) -> Level:
    """Return `exact` iff every reused token has seen the tokens in use at lower positions, all of them and no other."""
    parts = [reuse.part for reuse in plan.reuse]
    in_use = {(part.encoding, index) for part in parts for index in range(part.start, part.stop)}
    new_positions = [position for part in plan.prefill for position in range(part.start, part.stop)]
    for token in in_use:
        position = _position(token)
        lower = {other for other in in_use if _position(other) < position}
        if _seen(token) != lower or any(new < position for new in new_positions):
            return Level.MODULAR
    return Level.EXACT


def _seen(token: _Token) -> set[_Token]:
    """Return every stored token that `token` attended to while it was encoded."""
    encoding, _ = token
    stored = [(encoding, index) for index in range(len(encoding.token_ids))]
    stored += [(part.encoding, index) for part in encoding.context for index in range(part.start, part.stop)]
    return {other for other in stored if _position(other) < _position(token)}


def _position(token: _Token) -> int:
    encoding, index = token
    return encoding.position_ids[index]
