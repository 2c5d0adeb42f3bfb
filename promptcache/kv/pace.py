"""Where loading is cheaper than encoding: the figures that say so.

Comes in: figures that somebody measured, or gave. Goes out: whether to load so many bytes. This file knows no clock and
no files: `runtime/pacing.py` measures, and `kv/files/pace_file.py` keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from promptcache.diagnostics import StoreError
from promptcache.kv.store import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Measured figures that say where loading is cheaper than encoding; who gives none loads whatever is there.

    Attributes:
        encode_tokens_per_s: Tokens that the model encodes.
        load_bytes_per_s: By tier, once reading has begun; of KV as the model computes it, however it rests.
        latency_s: By tier, until it begins. A tier without figures is always loaded from.

    Raises:
        StoreError: A figure is no such number.
    """

    encode_tokens_per_s: float
    load_bytes_per_s: Mapping[Tier, float]
    latency_s: Mapping[Tier, float]

    def __post_init__(self) -> None:
        for name, figure in (
            ("encode_tokens_per_s", self.encode_tokens_per_s),
            *((f"load_bytes_per_s of {tier}", each) for tier, each in self.load_bytes_per_s.items()),
        ):
            if not _is_number(figure) or figure <= 0:
                raise StoreError(f"{name} is a number above 0, not {figure!r}")
        for tier, figure in self.latency_s.items():
            if not _is_number(figure) or figure < 0:
                raise StoreError(f"latency_s of {tier} is a number of seconds from 0 on, not {figure!r}")

    def is_worth_loading(self, tier: Tier, num_tokens: int, nbytes: int) -> bool:
        """Whether so many bytes come faster from this tier than their tokens from the model."""
        if tier not in self.load_bytes_per_s:
            return True
        loading_s = self.latency_s.get(tier, 0.0) + nbytes / self.load_bytes_per_s[tier]
        return loading_s < num_tokens / self.encode_tokens_per_s


def _is_number(figure: object) -> bool:
    """Whether this is a number that one can reckon with; NaN and what floats cannot hold are none."""
    limit = sys.float_info.max
    return isinstance(figure, int | float) and not isinstance(figure, bool) and -limit <= figure <= limit
