"""Measured figures: when they speak for loading, and how a folder keeps them."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from promptcache.diagnostics import StoreError, TierUnavailable
from promptcache.kv import Pace, StoreConfig, Tier
from promptcache.kv.files.disk import DiskTier
from promptcache.kv.files.pace_file import keep_pace, kept_pace, pace_name

FIGURES: dict[str, Any] = {
    "encode_tokens_per_s": 812.5,
    "load_bytes_per_s": {"disk": 3e8, "remote": 2e7},
    "latency_s": {"disk": 0.0, "remote": 0.04},
}
PACE = Pace(
    encode_tokens_per_s=812.5,
    load_bytes_per_s={Tier.DISK: 3e8, Tier.REMOTE: 2e7},
    latency_s={Tier.DISK: 0.0, Tier.REMOTE: 0.04},
)


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    """Figures come back as they were, by the model and the kind of device that they were measured on."""
    slower = Pace(encode_tokens_per_s=1, load_bytes_per_s={}, latency_s={})
    cpu, cuda = (pace_name("f", torch.device(device)) for device in ("cpu", "cuda:1"))
    for name, pace in ((cpu, PACE), (cuda, PACE), (cpu, slower), (pace_name("g", torch.device("cpu")), slower)):
        keep_pace(tmp_path / "new", name, pace)

    assert [kept_pace(tmp_path / "new", name) for name in (cpu, cuda, "g cpu", "h cpu")] == [slower, PACE, slower, None]
    assert kept_pace(tmp_path / "nowhere", cpu) is None


def test_the_file_is_as_specified(tmp_path: Path) -> None:
    """It is JSON with a format and a version, and an entry for each name."""
    keep_pace(tmp_path, "f cpu", PACE)

    kept = json.loads((tmp_path / "pace.json").read_text())

    assert kept == {"format": "promptcache pace", "version": 1, "paces": {"f cpu": FIGURES}}


def with_figures(**changes: object) -> str:
    """A file whose entry differs from a good one."""
    entry = {**FIGURES, **changes}
    return json.dumps({"format": "promptcache pace", "version": 1, "paces": {"f cpu": entry}})


BROKEN: dict[str, str | bytes | Callable[[Path], object]] = {
    "empty": "",
    "cut": with_figures()[:-3],
    "no object": "[]",
    "not text": b"\xff\xfe\xff",
    "deep": "[" * 100_000,
    "too long": " " * 2**20 + with_figures(),
    "another format": with_figures().replace("promptcache pace", "pace"),
    "another version": with_figures().replace('"version": 1', '"version": 2'),
    "no paces": '{"format": "promptcache pace", "version": 1}',
    "entry is no object": '{"format": "promptcache pace", "version": 1, "paces": {"f cpu": 3}}',
    "figure missing": with_figures().replace(', "latency_s": {"disk": 0.0, "remote": 0.04}', ""),
    "figure unknown": with_figures(more=1),
    "tier unknown": with_figures(latency_s={"tape": 1}),
    "tiers are no object": with_figures(load_bytes_per_s=[1]),
    "zero": with_figures(encode_tokens_per_s=0),
    "negative": with_figures(latency_s={"disk": -1}),
    "a text": with_figures(encode_tokens_per_s="fast"),
    "true": with_figures(encode_tokens_per_s=True),
    "NaN": with_figures(encode_tokens_per_s=float("nan")),
    "infinite": with_figures().replace("812.5", "1e400"),
    "too large for a float": with_figures(encode_tokens_per_s=10**400),
    "a link": lambda path: (path.with_name("good").write_text(with_figures()), path.symlink_to("good")),
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_as_good_as_none(tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever stands there, it is told in the log once and never raised, and the next figures take its place."""
    path, put = tmp_path / "pace.json", BROKEN[fault]
    if callable(put):
        put(path)
    else:
        path.write_bytes(put if isinstance(put, bytes) else put.encode())

    with caplog.at_level(logging.WARNING):
        found = kept_pace(tmp_path, "f cpu")
    keep_pace(tmp_path, "f cpu", PACE)

    assert found is None
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    assert kept_pace(tmp_path, "f cpu") == PACE


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails is told as such; the figures from before stay whole, and nothing else is left."""
    keep_pace(tmp_path, "f cpu", PACE)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(TierUnavailable, match="cannot write: No space left"):
            keep_pace(tmp_path, "g cpu", PACE)

    assert kept_pace(tmp_path, "f cpu") == PACE
    assert kept_pace(tmp_path, "g cpu") is None
    assert list(tmp_path.glob("*.tmp")) == []


def test_what_a_killed_process_left_is_collected(tmp_path: Path) -> None:
    """`gc` removes a half-written file of figures, and leaves the whole one."""
    keep_pace(tmp_path, "f cpu", PACE)
    (tmp_path / "replacing.tmp").write_text("{")

    assert DiskTier(tmp_path).gc() == ("replacing.tmp",)
    assert not (tmp_path / "replacing.tmp").exists()
    assert kept_pace(tmp_path, "f cpu") == PACE


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
    """What one cannot reckon with is refused by its name."""
    with pytest.raises(StoreError, match=message):
        Pace(**{"encode_tokens_per_s": 1, "load_bytes_per_s": {}, "latency_s": {}, **figures})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"folder": "x", "pace": "fast"}, "pace='fast' is not allowed: a Pace, \"kept\" or None is expected"),
        ({"folder": "x", "pace": 3}, "pace=3"),
        ({"url": "memory://x", "pace": "kept"}, "there is none; give folder="),
    ],
)
def test_only_a_folder_keeps_figures(config: dict[str, Any], message: str) -> None:
    """A store says what a pace can be, and where it can come from."""
    with pytest.raises(StoreError, match=message):
        StoreConfig(**config)


def test_the_example_of_the_specification_is_read(tmp_path: Path) -> None:
    """The file that docs/store-format.md shows is one."""
    page = (Path(__file__).parents[2] / "docs" / "store-format.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "pace.json").write_text(example)

    found = kept_pace(tmp_path, "demo cpu")

    assert found == Pace(encode_tokens_per_s=812.5, load_bytes_per_s={Tier.DISK: 3e8}, latency_s={Tier.DISK: 0.002})
