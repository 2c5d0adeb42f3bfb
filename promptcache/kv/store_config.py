"""What a user says of a store, a path, a URL or a `StoreConfig`, and the store that is opened from it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from promptcache.diagnostics import BYTES, FLAG, PATH, TEXT, Kind, StoreError, instance, number
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.memory.store import MemoryStore
from promptcache.kv.pace import Pace
from promptcache.kv.store import Store, Tier
from promptcache.kv.tiered import TieredStore
from promptcache.kv.types import KVShape

_MODES = ("first", "always", "never")
_PLACE = Kind("the path of a folder, or a URL,", PATH.takes)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[^:/]+)*://.+", re.DOTALL)
_KINDS: Mapping[str, Kind] = {
    "folder": PATH | None,
    "url": Kind("a URL, as s3://bucket/folder,", lambda url: PATH.takes(url) and bool(_URL.fullmatch(str(url)))) | None,
    **dict.fromkeys(("memory_bytes", "host_bytes", "disk_bytes"), BYTES | None),
    "verify": Kind(f"one of {', '.join(_MODES)}", lambda mode: isinstance(mode, str) and mode in _MODES),
    "mmap": FLAG,
    "timeout_s": number(0),
    "url_options": Kind(
        "a mapping of names to options", lambda value: isinstance(value, Mapping) and all(map(TEXT.takes, value))
    ),
    "pace": instance("a Pace", Pace) | None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where encodings rest, and how much of each tier they may take; a budget of None is no limit.

    Attributes:
        folder: The disk tier, which any number of processes may share; None has none.
        url: The remote tier, anything that fsspec knows (`s3://bucket/folder`); None has none.
        memory_bytes: Budget of the memory on the model's device.
        host_bytes: Budget of a tier in the host's memory, for models on another device; None has no such tier.
        disk_bytes: Budget of the folder.
        verify: When a file of the folder is compared with its checksum: at its "first" use in this process, "always" or
            "never". What comes from a URL always is.
        mmap: Map the folder's files; False for folders that others than this library write in.
        timeout_s: How long to wait for each answer of the URL.
        url_options: What else fsspec's file system is made with, such as credentials.
        pace: Load an encoding only where these figures say that loading is faster than encoding; None always loads.
    """

    folder: str | os.PathLike[str] | None = None
    url: str | None = None
    memory_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    verify: str = "first"
    mmap: bool = True
    timeout_s: float = 10.0
    url_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    pace: Pace | None = None

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            kind.check(name, getattr(self, name), StoreError)
        if self.disk_bytes is not None and self.folder is None:
            raise StoreError("disk_bytes limits a folder, and there is none; give folder=…")


StoreSource: TypeAlias = Store | StoreConfig | str | os.PathLike[str]
"""What can be opened as a store."""

_SOURCE = (
    instance("a path, a URL, a StoreConfig or a Store (a subclass of promptcache.Store)", StoreConfig, Store) | None
)


def open_store(source: StoreSource | None, shape: KVShape) -> Store:
    """Open a store for KV of a shape: a `TieredStore`, or the `Store` that was given.

    Args:
        source: A path or URL, a `StoreConfig`, or a `Store`, which is returned as it is; None is memory only.

    Raises:
        StoreError: It cannot be a store; says why. A folder that cannot be written can be one: it is read.
    """
    source = checked_source(source)
    if isinstance(source, Store):
        return source
    if source is None:
        source = StoreConfig()
    memory = MemoryStore(shape, budget_bytes=source.memory_bytes)
    host = None
    if source.host_bytes is not None:
        on_host = replace(shape, device=torch.device("cpu"))
        host = MemoryStore(on_host, budget_bytes=source.host_bytes, tier=Tier.HOST)
    return TieredStore(memory, open_blob_tiers(source), host=host, pace=source.pace)


def checked_source(source: StoreSource | None) -> StoreConfig | Store | None:
    """Return what a user names as a store, a path or URL as a configuration; nothing is opened yet.

    Raises:
        StoreError: It is none of these.
    """
    if isinstance(source, str | os.PathLike):
        return config_of(source)
    _SOURCE.check("store", source, StoreError)
    return source


def config_of(place: str | os.PathLike[str]) -> StoreConfig:
    """Return the store at a path or, where `://` stands in it, a URL."""
    _PLACE.check("store", place, StoreError)
    text = os.fspath(place)
    return StoreConfig(url=text) if "://" in text else StoreConfig(folder=text)


def open_blob_tiers(config: StoreConfig) -> tuple[BlobTier, ...]:
    """Open the tiers of a store in which encodings rest, fastest first.

    Raises:
        StoreError: One of them cannot be a tier; says why.
    """
    tiers: list[BlobTier] = []
    if config.folder is not None:
        from promptcache.kv.files.disk import DiskTier

        tiers.append(DiskTier(config.folder, budget_bytes=config.disk_bytes, verify=config.verify, mmap=config.mmap))
    if config.url is not None:
        try:
            from promptcache.kv.files.remote import RemoteTier
        except ImportError as missing:
            raise StoreError(str(missing)) from missing
        tiers.append(RemoteTier(config.url, timeout_s=config.timeout_s, options=config.url_options))
    return tuple(tiers)
