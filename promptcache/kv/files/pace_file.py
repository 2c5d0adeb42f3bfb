"""The figures of `kv/pace.py`, kept in a store's folder: one file, with an entry for each model on each kind of device.

Comes in: figures, and the name they go by. Goes out: the same in a later process. What is in the file is a measurement
and no more: one that cannot be read is as good as none, and the next one that is measured takes its place.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from promptcache.diagnostics import StoreError
from promptcache.kv.files.folder import Folder
from promptcache.kv.pace import Pace
from promptcache.kv.store import Tier

FILE = "pace.json"

_FORMAT = "promptcache pace"
_VERSION = 1
_MAX_BYTES = 2**20
_FIGURES = {"encode_tokens_per_s", "load_bytes_per_s", "latency_s"}
_log = logging.getLogger(__name__)


def pace_name(fingerprint: str, device: torch.device) -> str:
    """Return what the figures of a model go by: it is as fast as the device that it is on."""
    return f"{fingerprint} {device.type}"


def kept_pace(folder: Path, name: str) -> Pace | None:
    """Return the figures that a folder keeps under a name; none where it has none, or where they cannot be read."""
    path = folder / FILE
    try:
        entry = _entries(path).get(name)
        return None if entry is None else _pace(entry)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as fault:
        _log.warning("%s is ignored, and whatever rests here is loaded: %s", path, fault)
        return None


def keep_pace(folder: Path, name: str, pace: Pace) -> None:
    """Keep figures in a folder, in place of those that it has under this name.

    Raises:
        StoreError: The folder cannot be written.
    """
    place = Folder(folder)
    with place.refusing("write"):
        place.make()
        with place.locked():
            entries = {**_readable_entries(folder / FILE), name: _entry(pace)}
            content = {"format": _FORMAT, "version": _VERSION, "paces": dict(sorted(entries.items()))}
            place.replace(FILE, f"{json.dumps(content, indent=1)}\n".encode())


def _readable_entries(path: Path) -> Mapping[str, Any]:
    try:
        return _entries(path)
    except (OSError, ValueError, RecursionError):
        return {}


def _entries(path: Path) -> Mapping[str, Any]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - by its descriptor
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
    content = json.loads(data, parse_constant=_refuse)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"it is no {_FORMAT}")
    if content.get("version") != _VERSION:
        raise ValueError(f"it is of version {content.get('version')!r}, and this is a reader of version {_VERSION}")
    entries = content.get("paces")
    if not isinstance(entries, dict):
        raise ValueError("it has no paces")
    return entries


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _pace(entry: object) -> Pace:
    if not isinstance(entry, dict) or set(entry) != _FIGURES:
        raise ValueError(f"an entry has {', '.join(sorted(_FIGURES))}, and no more")
    tiers = [entry[name] for name in ("load_bytes_per_s", "latency_s")]
    if not all(isinstance(each, dict) and set(each) <= set(Tier) for each in tiers):
        raise ValueError(f"figures by tier are by {', '.join(Tier)}")
    load, latency = ({Tier(tier): figure for tier, figure in each.items()} for each in tiers)
    try:
        return Pace(encode_tokens_per_s=entry["encode_tokens_per_s"], load_bytes_per_s=load, latency_s=latency)
    except StoreError as fault:
        raise ValueError(str(fault)) from fault


def _entry(pace: Pace) -> Mapping[str, Any]:
    return {
        "encode_tokens_per_s": pace.encode_tokens_per_s,
        "load_bytes_per_s": {str(tier): figure for tier, figure in pace.load_bytes_per_s.items()},
        "latency_s": {str(tier): figure for tier, figure in pace.latency_s.items()},
    }
