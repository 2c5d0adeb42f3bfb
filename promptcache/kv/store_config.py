"""Configuration of a store (a path, a URL or a `StoreConfig`), and the store that is opened from it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from promptcache.declared import Declared, check_fields, declare
from promptcache.diagnostics import BYTES, PATH, TEXT, Kind, StoreError, instance, number
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.tier import FileTier
from promptcache.kv.store import Store
from promptcache.kv.types import KVShape

_log = logging.getLogger(__name__)

_LOCATION = Kind("the path of a folder, or a URL,", PATH.takes)
_URL = re.compile(r"(?!(file|local)://)[A-Za-z][A-Za-z0-9+.-]*(::[^:/]+)*://.+", re.DOTALL)
_FILE_URL = re.compile(r"(file|local)://")
_REMOTE = Kind(
    "a URL of another machine, as s3://bucket/folder,", lambda url: PATH.takes(url) and bool(_URL.fullmatch(str(url)))
)
_OPTIONS = Kind(
    "a mapping of names to options", lambda value: isinstance(value, Mapping) and all(map(TEXT.takes, value))
)


def _part(kind: Kind, words: str, default: Any = None, **more: Any) -> Any:
    """Declare a field; None is allowed where it is the default."""
    return declare(Declared(kind=kind if default is not None else kind | None, words=words), default, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Tiers of a store and their budgets in bytes."""

    folder: str | os.PathLike[str] | None = _part(
        PATH, "Folder of the disk tier, which any number of processes may share."
    )
    url: str | None = _part(_REMOTE, "URL of the remote tier, for any file system of fsspec.")
    tier: BlobTier | None = _part(
        instance("a BlobTier (a subclass of promptcache.BlobTier)", BlobTier),
        "A tier of your own, asked after the others.",
    )
    memory_bytes: int | None = _part(
        BYTES, "Budget of the memory on the model's device, for all KV of an engine; None: a quarter of that memory."
    )
    host_bytes: int | None = _part(
        BYTES, "Budget of a tier in host memory, for models on another device; None: no such tier."
    )
    disk_bytes: int | None = _part(BYTES, "Budget of the folder; None: no limit.")
    timeout_s: float = _part(number(0), "Timeout of each operation on the URL.", 10.0)
    url_options: Mapping[str, Any] | None = _part(
        _OPTIONS, "Options of the file system of fsspec, such as credentials.", repr=False
    )

    def __post_init__(self) -> None:
        check_fields(self, StoreError)
        if self.disk_bytes is not None and self.folder is None:
            raise StoreError("disk_bytes limits a folder, and there is none; give folder=…")


StoreSource: TypeAlias = Store | StoreConfig | BlobTier | str | os.PathLike[str]
"""Values that `open_store` opens."""

_SOURCE = instance("a path, a URL, a StoreConfig, a BlobTier or the store of another engine", StoreConfig, Store) | None


def open_store(source: StoreSource | None, shape: KVShape) -> Store:
    """Open a store for KV of a shape.

    Args:
        source: A path, a URL, a `StoreConfig` or a `BlobTier`. A `Store` is returned as it is. None: memory only.
        shape: Shape of the KV of the model.

    Raises:
        StoreError: The source cannot be a store, or is a `Store` for KV of another shape. A read-only folder can: it is
            only read.
    """
    source = checked_source(source)
    if isinstance(source, Store):
        held = source.memory.shape
        device = torch.empty(0, device=held.device).device  # "cuda" is "cuda:0"
        if replace(held, device=device) != shape:
            raise StoreError(
                f"the store holds KV of {held}, and the model has {shape}: give each such model a Store of its own; "
                "all models can share a folder, store='…'"
            )
        return source
    if source is None:
        source = StoreConfig()
    tiers: list[BlobTier] = []  # the fastest first
    if source.folder is not None:
        tiers.append(FileTier(source.folder, budget_bytes=source.disk_bytes))
    if source.url is not None:
        tiers.append(FileTier(source.url, timeout_s=source.timeout_s, options=source.url_options or {}))
    if source.tier is not None:
        tiers.append(source.tier)
    store = Store(shape, tiers, budget_bytes=source.memory_bytes, host_bytes=source.host_bytes)
    if source.memory_bytes is None:
        _log.info(
            "KV takes at most %s bytes of memory, a quarter of that of %s; StoreConfig(memory_bytes=…) changes it",
            f"{store.memory.budget_bytes:,}",
            shape.device,
        )
    return store


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
