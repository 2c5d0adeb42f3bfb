"""Figures that say where loading an encoding is faster than computing it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from promptcache.diagnostics import StoreError
from promptcache.kv.store import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Speeds that a user measured: a store with a `Pace` loads an encoding only where loading is faster than encoding.

    Attributes:
        encode_tokens_per_s: How many tokens the model encodes in a second.
        load_bytes_per_s: Throughput by tier, in bytes of KV as the model computes it; a tier without a figure always
            loads.
        latency_s: Seconds by tier until the first byte; 0 where a tier has no figure.

    Raises:
        StoreError: A throughput is not above 0, or a latency is below 0.
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
        """Return whether a tier loads `nbytes` faster than the model encodes their `num_tokens` tokens."""
        if tier not in self.load_bytes_per_s:
            return True
        loading_s = self.latency_s.get(tier, 0.0) + nbytes / self.load_bytes_per_s[tier]
        return loading_s < num_tokens / self.encode_tokens_per_s


def _is_number(figure: object) -> bool:
    """Return whether this is a finite number that a float can hold."""
    limit = sys.float_info.max
    return isinstance(figure, int | float) and not isinstance(figure, bool) and -limit <= figure <= limit
