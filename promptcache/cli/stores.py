"""Stores as the command line names them: opened for an engine, or to look into.

Comes in: a path or URL, and limits. Goes out: a `StoreConfig`, or a tier. This file imports torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from promptcache.cli.exits import EnvironmentMissing, UsageMistake
from promptcache.kv import StoreConfig, config_of, expand_home

if TYPE_CHECKING:
    from promptcache.kv import DiskTier


def store_config(place: str, limit: int | None, *, memory_bytes: int | None = None) -> StoreConfig:
    """Return where an engine keeps KV.

    Args:
        limit: Of the folder, in bytes.
        memory_bytes: Of the engine's own memory.
    """
    config = config_of(place)
    if limit is not None and config.folder is None:
        raise UsageMistake(f"--limit: {place} is no folder, and only folders have a limit")
    return replace(config, disk_bytes=limit, memory_bytes=memory_bytes)


def open_folder(place: str, limit: int | None = None) -> DiskTier:
    """Return a store's folder to look into; unlike engines, this makes none.

    Raises:
        EnvironmentMissing: There is no such folder, or it is no store.
    """
    if config_of(place).folder is None:
        raise UsageMistake(f"--store {place}: only folders can be looked into")
    folder = expand_home(place)
    if not (folder / "encodings").is_dir():
        if folder.exists():
            what = "is no store: it has no folder 'encodings'" if folder.is_dir() else "is not a folder"
        else:
            what = "does not exist"
        raise EnvironmentMissing(f"store '{place}' {what}; `promptcache warm SCHEMA --store {place}` makes one")
    from promptcache.kv import DiskTier  # folders need POSIX; `run` without one does not

    return DiskTier(folder, budget_bytes=limit, mmap=False)
