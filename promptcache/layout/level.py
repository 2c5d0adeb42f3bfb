"""How near a request comes to one uncached forward pass.

Comes in: what a request reuses and prefills. Goes out: its level, neither over- nor understated. This file knows no
schema.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcache.layout.types import Encoding, Level, Prefill, Reuse


def level_of(reuse: Sequence[Reuse], prefill: Sequence[Prefill], encodings: Sequence[Encoding]) -> Level:
    """Return `exact` if and only if every reused token has seen just the tokens in use at lower positions.

    Args:
        reuse: In position order; an encoding's range is split only at a hidden filler or at new tokens.
        prefill: In position order.
        encodings: What the `Reuse` records point into.

    An encoding's tokens have seen all of its context and all of itself that lies lower. So nothing new may lie below a
    reused token; a reused range must begin its encoding; and the context must be the encodings in use before it, each
    used whole, and no
    other: one left out was not seen, one too many is a superseded state, and what is cut out of one is a filler that
        was.
    """
    if not reuse:
        return Level.EXACT
    last = reuse[-1]
    if prefill and prefill[0].start < encodings[last.encoding].position_ids[last.stop - 1]:
        return Level.MODULAR
    seen: list[int] = []
    for part in reuse:
        encoding = encodings[part.encoding]
        if part.start != 0 or len(encoding.context) != len(seen) or list(encoding.context) != seen:
            return Level.MODULAR
        if part is not last and part.stop != len(encoding.token_ids):
            return Level.MODULAR
        seen.append(part.encoding)
    return Level.EXACT
