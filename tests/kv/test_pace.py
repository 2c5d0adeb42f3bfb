"""`Pace`: figures that tell when loading is faster than encoding."""

from __future__ import annotations

from typing import Any

import pytest

from promptcache.diagnostics import StoreError
from promptcache.kv import Pace, StoreConfig, Tier


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"encode_tokens_per_s": 0}, "encode_tokens_per_s=0 is not allowed: a number above 0 is expected"),
        ({"encode_tokens_per_s": float("inf")}, "=inf is not allowed: a number above 0"),
        ({"load_bytes_per_s": {Tier.DISK: -1.0}}, r"load_bytes_per_s of disk=-1\.0 is not allowed: a number above 0"),
        ({"latency_s": {Tier.DISK: -0.1}}, r"latency_s of disk=-0\.1 is not allowed"),
        ({"latency_s": {Tier.DISK: True}}, "latency_s of disk=True is not allowed"),
        ({"latency_s": {Tier.DISK: float("nan")}}, "latency_s of disk=nan is not allowed: a number from 0 on"),
    ],
)
def test_figures_are_numbers(figures: dict[str, Any], message: str) -> None:
    """A figure that is not a finite number in its range is refused, and the message names it."""
    with pytest.raises(StoreError, match=message):
        Pace(**{"encode_tokens_per_s": 1, "load_bytes_per_s": {}, "latency_s": {}, **figures})


@pytest.mark.parametrize("pace", ["kept", 3])
def test_a_store_takes_a_pace(pace: Any) -> None:
    """`StoreConfig` refuses a pace that is not a `Pace`."""
    with pytest.raises(StoreError, match=f"pace={pace!r} is not allowed: a Pace or None is expected"):
        StoreConfig(folder="x", pace=pace)


@pytest.mark.parametrize(("nbytes", "worth"), [(999, True), (1001, False)])
def test_loading_pays_below_the_time_of_encoding(nbytes: int, worth: bool) -> None:
    """Loading is chosen if it takes less time than encoding, here 0.5 s and 1 s for 2,000 bytes against 1 s."""
    pace = Pace(encode_tokens_per_s=10, load_bytes_per_s={Tier.DISK: 2000}, latency_s={Tier.DISK: 0.5})

    assert pace.is_worth_loading(Tier.DISK, 10, nbytes) is worth
    assert pace.is_worth_loading(Tier.REMOTE, 10, nbytes)  # no figure for this tier
