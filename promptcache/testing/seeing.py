"""The definition of the level `exact`, token by token and in quadratic time.

Comes in: a plan. Goes out: the level that it must carry. This file trusts nothing of a plan but its tokens.
"""

from __future__ import annotations

from promptcache.layout.types import Level, Plan

_Token = tuple[int, int]  # encoding, index of the token


def true_level(plan: Plan) -> Level:
    """Return `exact` iff every reused token has seen the tokens in use at lower positions, all of them and no other."""
    in_use = {(part.encoding, index) for part in plan.reuse for index in range(part.start, part.stop)}
    new_positions = [position for part in plan.prefill for position in range(part.start, part.stop)]
    for token in in_use:
        position = _position(plan, token)
        lower = {other for other in in_use if _position(plan, other) < position}
        if _seen(plan, token) != lower or any(new < position for new in new_positions):
            return Level.MODULAR
    return Level.EXACT


def _seen(plan: Plan, token: _Token) -> set[_Token]:
    """Return every stored token that `token` attended to while it was encoded."""
    own = plan.encodings[token[0]]
    return {
        (index, place)
        for index in (*own.context, own.index)
        for place, position in enumerate(plan.encodings[index].position_ids)
        if position < _position(plan, token)
    }


def _position(plan: Plan, token: _Token) -> int:
    return plan.encodings[token[0]].position_ids[token[1]]
