"""Figures that say when loading is faster than encoding."""

from __future__ import annotations

from typing import Any

import pytest

from promptcache.diagnostics import StoreError
from promptcache.kv import Pace, StoreConfig, Tier


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"encode_tokens_per_s": 0}, "encode_tokens_per_s is a number above 0, not 0"),
        ({"encode_tokens_per_s": float("inf")}, "not inf"),
        ({"load_bytes_per_s": {Tier.DISK: -1.0}}, r"load_bytes_per_s of disk is a number above 0, not -1\.0"),
        ({"latency_s": {Tier.DISK: float("nan")}}, "latency_s of disk is a number of seconds from 0 on, not nan"),
    ],
)
def test_figures_are_numbers(figures: dict[str, Any], message: str) -> None:
    """A figure that is not a finite number in its range is refused by its name."""
    with pytest.raises(StoreError, match=message):
        Pace(**{"encode_tokens_per_s": 1, "load_bytes_per_s": {}, "latency_s": {}, **figures})


@pytest.mark.parametrize("pace", ["kept", 3])
def test_a_store_takes_a_pace(pace: Any) -> None:
    """Anything but a `Pace` is refused."""
    with pytest.raises(StoreError, match=f"pace={pace!r} is not allowed: a Pace or None is expected"):
        StoreConfig(folder="x", pace=pace)


@pytest.mark.parametrize(("nbytes", "worth"), [(999, True), (1001, False)])
def test_loading_is_worth_it_below_the_time_of_encoding(nbytes: int, worth: bool) -> None:
    """10 tokens take 1 s to encode; the disk gives the first byte after 0.5 s and 2,000 bytes a second after that."""
    pace = Pace(encode_tokens_per_s=10, load_bytes_per_s={Tier.DISK: 2000}, latency_s={Tier.DISK: 0.5})

    assert pace.is_worth_loading(Tier.DISK, 10, nbytes) is worth
    assert pace.is_worth_loading(Tier.REMOTE, 10, nbytes)  # no figure for this tier
