"""Configuration of a store (a path, a URL or a `StoreConfig`), and the store that is opened from it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from promptcache.diagnostics import BYTES, PATH, TEXT, Kind, StoreError, instance, number
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.tier import FileTier
from promptcache.kv.memory_store import MemoryStore
from promptcache.kv.store import Store, Tier
from promptcache.kv.tiered import TieredStore
from promptcache.kv.types import KVShape

_log = logging.getLogger(__name__)

_LOCATION = Kind("the path of a folder, or a URL,", PATH.takes)
_URL = re.compile(r"(?!(file|local)://)[A-Za-z][A-Za-z0-9+.-]*(::[^:/]+)*://.+", re.DOTALL)
_FILE_URL = re.compile(r"(file|local)://")
_KINDS: Mapping[str, Kind] = {
    "folder": PATH | None,
    "url": Kind(
        "a URL of another machine, as s3://bucket/folder,",
        lambda url: PATH.takes(url) and bool(_URL.fullmatch(str(url))),
    )
    | None,
    **dict.fromkeys(("memory_bytes", "host_bytes", "disk_bytes"), BYTES | None),
    "tier": instance("a BlobTier (a subclass of promptcache.BlobTier)", BlobTier) | None,
    "timeout_s": number(0),
    "url_options": Kind(
        "a mapping of names to options", lambda value: isinstance(value, Mapping) and all(map(TEXT.takes, value))
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Tiers of a store and their budgets in bytes.

    Attributes:
        folder: Folder of the disk tier, which any number of processes may share. None: no disk tier.
        url: URL of the remote tier, for any file system of fsspec (`s3://bucket/folder`). None: no remote tier.
        tier: A tier of your own, asked after the others.
        memory_bytes: Budget of the memory on the model's device, for all KV that an engine keeps there: encodings,
            history and joined copies. None: a quarter of that memory.
        host_bytes: Budget of a tier in host memory, for models on another device. None: no host tier.
        disk_bytes: Budget of the folder. None: no limit.
        timeout_s: Timeout of each operation on the URL.
        url_options: Options of the file system of fsspec, such as credentials.
    """

    folder: str | os.PathLike[str] | None = None
    url: str | None = None
    tier: BlobTier | None = None
    memory_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    timeout_s: float = 10.0
    url_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            kind.check(name, getattr(self, name), StoreError)
        if self.disk_bytes is not None and self.folder is None:
            raise StoreError("disk_bytes limits a folder, and there is none; give folder=…")


StoreSource: TypeAlias = Store | StoreConfig | BlobTier | str | os.PathLike[str]
"""Values that `open_store` opens."""

_SOURCE = instance("a path, a URL, a StoreConfig, a BlobTier or the store of another engine", StoreConfig, Store) | None


def open_store(source: StoreSource | None, shape: KVShape) -> Store:
    """Open a store for KV of a shape.

    Args:
        source: A path, a URL, a `StoreConfig` or a `BlobTier`, for which a `TieredStore` is returned. A `Store` is
            returned as it is. None: memory only.
        shape: Shape of the KV of the model.

    Raises:
        StoreError: The source cannot be a store, or is a `Store` for KV of another shape. A read-only folder can: it is
            only read.
    """
    source = checked_source(source)
    if isinstance(source, Store):
        _check_shape(source, shape)
        return source
    if source is None:
        source = StoreConfig()
    memory = MemoryStore(shape, budget_bytes=source.memory_bytes)
    if source.memory_bytes is None:
        _log.info(
            "KV takes at most %s bytes of memory, a quarter of that of %s; StoreConfig(memory_bytes=…) changes it",
            f"{memory.budget_bytes:,}",
            shape.device,
        )
    host = None
    if source.host_bytes is not None:
        on_host = replace(shape, device=torch.device("cpu"))
        host = MemoryStore(on_host, budget_bytes=source.host_bytes, tier=Tier.HOST)
    tiers: list[BlobTier] = []  # the fastest first
    if source.folder is not None:
        tiers.append(FileTier(source.folder, budget_bytes=source.disk_bytes))
    if source.url is not None:
        tiers.append(FileTier(source.url, timeout_s=source.timeout_s, options=source.url_options))
    if source.tier is not None:
        tiers.append(source.tier)
    return TieredStore(memory, tiers, host=host)


def _check_shape(store: Store, shape: KVShape) -> None:
    """Refuse a store for KV of another shape."""
    held = store.memory.shape
    device = torch.empty(0, device=held.device).device  # "cuda" is "cuda:0"
    if replace(held, device=device) != shape:
        raise StoreError(
            f"the store holds KV of {held}, and the model has {shape}: give each such model a Store of its own; all "
            "models can share a folder, store='…'"
        )


def checked_source(source: StoreSource | None) -> StoreConfig | Store | None:
    """Return a source with a path, URL or tier turned into a `StoreConfig`. Nothing is opened yet.

    Raises:
        StoreError: `source` is not a source.
    """
    if isinstance(source, str | os.PathLike):
        return config_of(source)
    if isinstance(source, BlobTier):
        return StoreConfig(tier=source)
    _SOURCE.check("store", source, StoreError)
    return source


def config_of(location: str | os.PathLike[str]) -> StoreConfig:
    """Return the configuration of a path or, if it contains `://`, of a URL. A `file://` URL is the path in it."""
    _LOCATION.check("store", location, StoreError)
    text = _FILE_URL.sub("", os.fspath(location))
    return StoreConfig(url=text) if "://" in text else StoreConfig(folder=text)
