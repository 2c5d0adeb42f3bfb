"""The fingerprint of a model: a sha256 over everything that its KV depends on, weights included.

Digesting weights takes about a second per two gigabytes. So the digest is recorded in the user's cache folder, and
recalled while neither the files nor the loaded weights have changed. The state of a folder is the names, sizes,
inodes, and times of modification and change (`ctime`, which no program can set back) of its files. A record that
cannot be read or verified is ignored.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from promptcache.atomic import atomic_write, read_regular
from promptcache.kv import FORMAT_VERSION
from promptcache.model.additions import (
    adapter_layers,
    additions,
    digest_of,
    plain_tensors,
    tensor_digest,
    unused_weights,
)

_NOT_IDENTITY = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "use_cache")

_WeightPlace: TypeAlias = tuple[tuple[int, int], ...]
"""Address and version of each tensor that holds values of a weight."""


def model_fingerprint(model: PreTrainedModel, regime: str, origin: WeightsOrigin | None = None) -> str:
    """Return the fingerprint of `model`: a digest of its configuration, weights, dtype, RoPE regime and additions.

    Args:
        model: On any device; not changed.
        regime: Changes that were made to the model (pinned RoPE).
        origin: The folder of its weights, if known; it may recall their digest from an earlier start.
    """
    unused = unused_weights(model)
    tensors = {name: each for name, each in model.state_dict(keep_vars=True).items() if not _is_in(name, unused)}
    recorded = None if any(adapter_layers(model)) else origin  # a record of weights does not notice what peft writes
    weights = recorded.recall(tensors) if recorded is not None else None
    if weights is None:
        weights = weights_digest(tensors)
        if recorded is not None:
            recorded.remember(tensors, weights)
    about = [FORMAT_VERSION, type(model).__name__, str(model.dtype), regime, config_identity(model.config)]
    return digest_of([*about, weights, additions(model)])


def _is_in(name: str, places: Sequence[str]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


def config_identity(config: PretrainedConfig) -> dict[str, object]:
    """Return the configuration fields that KV depends on, without weights and dtype."""
    return {name: value for name, value in config.to_dict().items() if name not in _NOT_IDENTITY}


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a digest over names, dtypes, shapes and every bit of the weights, given by name."""
    named = sorted(tensors.items())
    with ThreadPoolExecutor() as pool:
        digests = tuple(pool.map(tensor_digest, (tensor for _, tensor in named)))
    return digest_of(
        [
            [name, str(tensor.dtype), *tensor.shape, digest]
            for (name, tensor), digest in zip(named, digests, strict=True)
        ]
    )


def _place(tensor: torch.Tensor) -> _WeightPlace | None:
    """Return where the values of a tensor are, and how often they were written; None without version counters."""
    parts = tuple(plain_tensors(tensor))
    if any(each.is_inference() for each in parts):
        return None
    return tuple((each.data_ptr(), each._version) for each in parts)


MIN_BYTES = 32 * 2**20
"""Smaller weights are not recorded: digesting them takes less time than a record."""

SETTLED_S = 2.0
"""A file that changed less than this many seconds ago may change again with the same times: file systems round them,
some to two seconds.
"""

_MAX_FILES = 10_000
_VERSION = 1
_RECORD_BYTES = 4096  # a record has about 250
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOrigin:
    """The folder of loaded weights, and a stamp of the weights as they were loaded.

    Attributes:
        record: File that records their digest.
        state: Digest of the folder's files, the same before and after loading.
        stamp: Hash of the weights in memory; changes when a weight is replaced or written to.
    """

    record: Path
    state: str
    stamp: int

    def recall(self, weights: Mapping[str, torch.Tensor]) -> str | None:
        """Return the recorded digest of these weights; None if there is none, or the weights have changed."""
        if _stamp(weights) != self.stamp:
            return None
        try:
            kept = json.loads(read_regular(self.record, _RECORD_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        digest = kept.get("weights") if isinstance(kept, dict) else None
        return digest if isinstance(digest, str) and kept == _content(self.state, digest) else None

    def remember(self, weights: Mapping[str, torch.Tensor], digest: str) -> None:
        """Record a digest for the next start, unless the weights have changed since loading."""
        if _stamp(weights) != self.stamp:
            return
        try:
            self.record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(self.record) as file:
                file.write(json.dumps(_content(self.state, digest)).encode())
        except OSError as error:
            _log.info("cannot record the digest of the weights: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLoading:
    """A folder whose weights are being loaded."""

    folder: Path
    state: str | None

    @staticmethod
    def begin(folder: Path) -> WeightsLoading:
        """Record the state of a folder before a file of it is read."""
        return WeightsLoading(folder=folder, state=_state(folder))

    def finish(self, model: Any, how: Mapping[str, Any]) -> WeightsOrigin | None:
        """Return the origin of loaded weights; None if their digest must be computed at each start.

        Args:
            model: The loaded model, on its device.
            how: The other options on which the weights depend.
        """
        folder = _cache_folder()
        weights = model.state_dict()
        if self.state is None or folder is None or sum(each.nbytes for each in weights.values()) < MIN_BYTES:
            return None
        if any(_place(each) is None for each in weights.values()):
            return None
        if _state(self.folder) != self.state:
            return None
        versions = (torch.__version__, transformers.__version__)
        identity = [str(self.folder.resolve()), type(model).__name__, str(model.dtype), dict(how), *versions]
        name = hashlib.sha256(json.dumps(identity, sort_keys=True, default=repr).encode()).hexdigest()
        return WeightsOrigin(record=folder / f"{name}.json", state=self.state, stamp=_stamp(weights))


def _content(state: str, digest: str) -> dict[str, object]:
    check = hashlib.sha256(f"{_VERSION} {state} {digest}".encode()).hexdigest()
    return {"version": _VERSION, "state": state, "weights": digest, "check": check}


def _cache_folder() -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME", "")
    with suppress(RuntimeError):  # the user has no home folder
        base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
        return base / "promptcache" / "weights"
    return None


def _stamp(weights: Mapping[str, torch.Tensor]) -> int:
    return hash(tuple((name, _place(each)) for name, each in weights.items()))


def _state(folder: Path) -> str | None:
    """Return a digest of the states of all files; None if they cannot be read or may still change."""
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
