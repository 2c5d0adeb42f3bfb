"""How near a request comes to one uncached forward pass.

Comes in: what a request reuses and prefills. Goes out: its level, neither over- nor understated. This file knows no
schema.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcache.layout.encoding import KVPart
from promptcache.layout.types import Level, Prefill


def level_of(parts: Sequence[KVPart], prefill: Sequence[Prefill]) -> Level:
    """Return `exact` if and only if every reused token has seen just the tokens in use at lower positions.

    Args:
        parts: In position order; an encoding's range is split only at a hidden filler or at new tokens.
        prefill: In position order.

    An encoding's tokens have seen all of its context and all of itself that lies lower. So nothing new may lie below a
    reused token, a reused part must begin its encoding, and its context must be the parts in use before it. A part
    that is missing there was not seen, and a part that is not in use – a superseded state, a filler – was seen.
    """
    if parts and prefill and prefill[0].start < parts[-1].last:
        return Level.MODULAR
    for index, part in enumerate(parts):
        context = part.encoding.context
        if part.start != 0 or len(context) != index or context != tuple(parts[:index]):
            return Level.MODULAR
    return Level.EXACT
