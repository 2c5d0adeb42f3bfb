"""Where weights came from: their digest is computed once per state of a model's folder and recalled after that.

Comes in: a model's folder, before and after loading. Goes out: a digest that was computed for just these weights, or
none. A folder's state is the names, sizes, times of modification and times of change (`ctime`, which no program can set
back) and the inodes of all files in it. Records are small files in the user's cache folder; any that cannot be read,
written or believed is as good as none. This file knows no configuration and no KV.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from promptcache.atomic import atomic_write

MIN_BYTES = 32 * 2**20
"""Weights smaller than this are digested in less time than it is worth to remember."""

SETTLED_S = 2.0
"""What was changed less than this before it was looked at may change again and have the same times: file systems round
them, some to two seconds."""

_MAX_FILES = 10_000
_VERSION = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The folder of loaded weights, and what they looked like in memory when they had been loaded.

    Attributes:
        record: Where their digest is remembered.
        state: Of the folder's files, the same before and after loading.
        stamp: Of the weights in memory: changes with whatever replaces one or writes to it.
    """

    record: Path
    state: str
    stamp: int

    def recall(self, weights: Mapping[str, torch.Tensor]) -> str | None:
        """Return the digest that was remembered for these weights; None if there is none or they have changed since."""
        if _stamp(weights) != self.stamp:
            return None
        try:
            kept = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(kept, dict) or kept.get("state") != self.state:
            return None
        digest = kept.get("weights")
        return digest if isinstance(digest, str) and kept == _content(self.state, digest) else None

    def remember(self, weights: Mapping[str, torch.Tensor], digest: str) -> None:
        """Keep a digest for the next start, unless the weights have changed since they were loaded."""
        if _stamp(weights) != self.stamp:
            return
        try:
            self.record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(self.record) as file:
                file.write(json.dumps(_content(self.state, digest)).encode())
        except OSError as error:
            _log.info("the digest of the weights is not remembered: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """A folder whose weights are about to be loaded."""

    folder: Path
    state: str | None

    @staticmethod
    def begin(folder: Path) -> Loading:
        """Look at a folder before anything of it is read."""
        return Loading(folder=folder, state=_state(folder))

    def finish(self, model: Any, how: Mapping[str, Any]) -> Origin | None:
        """Return where the weights of a model came from; None where its digest must be computed each time.

        Args:
            model: As loaded, on its device.
            how: What else decides how files become weights.
        """
        folder = _cache_folder()
        weights = model.state_dict()
        if self.state is None or folder is None or sum(each.nbytes for each in weights.values()) < MIN_BYTES:
            return None
        if any(each.is_inference() for each in weights.values()):  # nothing counts what is written to those
            return None
        if _state(self.folder) != self.state:
            return None
        versions = (torch.__version__, transformers.__version__)
        identity = [str(self.folder.resolve()), type(model).__name__, str(model.dtype), dict(how), *versions]
        name = hashlib.sha256(json.dumps(identity, sort_keys=True, default=repr).encode()).hexdigest()
        return Origin(record=folder / f"{name}.json", state=self.state, stamp=_stamp(weights))


def _content(state: str, digest: str) -> dict[str, object]:
    check = hashlib.sha256(f"{_VERSION} {state} {digest}".encode()).hexdigest()
    return {"version": _VERSION, "state": state, "weights": digest, "check": check}


def _cache_folder() -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # nobody's home
        base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
        return base / "promptcache" / "weights"
    return None


def _stamp(weights: Mapping[str, torch.Tensor]) -> int:
    return hash(tuple((name, each.data_ptr(), each._version) for name, each in weights.items()))


def _state(folder: Path) -> str | None:
    """Return a digest over the states of all files; None where they cannot be told or are still changing."""
    now_ns = time.time_ns()
    listed: list[tuple[str | int, ...]] = []
    try:
        for path in _files(folder):
            status = path.stat()
            if now_ns - max(status.st_mtime_ns, status.st_ctime_ns) < SETTLED_S * 1e9 or len(listed) == _MAX_FILES:
                return None
            times = (status.st_mtime_ns, status.st_ctime_ns)
            listed.append((str(path.relative_to(folder)), status.st_size, *times, status.st_ino, status.st_dev))
    except OSError:
        return None
    return hashlib.sha256(json.dumps(sorted(listed)).encode()).hexdigest() if listed else None


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent) / name
