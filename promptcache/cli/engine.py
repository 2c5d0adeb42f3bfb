"""The model, the device and the store that options name. Its functions import torch."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from promptcache.cli.exits import EnvironmentMissing, UsageMistake

if TYPE_CHECKING:
    import torch

    from promptcache.engine import Engine
    from promptcache.kv import FileTier, StoreConfig


def load_engine(model: str, device: str | None, dtype: str, store: StoreConfig | None = None, **options: Any) -> Engine:
    """Load a model and return an engine over a store, by default over memory.

    Args:
        options: Others of `Engine.from_pretrained`.

    Raises:
        UsageMistake: There is no such kind of device.
        EnvironmentMissing: The device is not there.
        PromptCacheError: The model or the store cannot be used.
    """
    from promptcache.engine import Engine

    logging.getLogger("promptcache.kv").addHandler(logging.NullHandler())  # commands print faults from the usage
    return Engine.from_pretrained(model, device=device_named(device), dtype=dtype, store=store, **options)


def device_named(name: str | None) -> torch.device | None:
    """Return the device of a name. None leaves the choice to the caller.

    Raises:
        UsageMistake: There is no such kind of device.
        EnvironmentMissing: The device is not there.
    """
    if name is None:
        return None
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageMistake(f"--device {name}: no such kind of device; cpu and cuda are the usual ones") from None
    if device.type == "meta":
        raise UsageMistake("--device meta: it holds no numbers, so that nothing can be computed on it")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise EnvironmentMissing(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices here")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EnvironmentMissing(f"--device {name}: {str(error).partition(chr(10))[0]}") from None
    return device


def optional_store(place: str | None, limit: int | None, *, memory_bytes: int | None = None) -> StoreConfig | None:
    """Return the configuration of a command that can do without a store, or None; arguments as for `store_config`.

    Raises:
        UsageMistake: There is a limit and no store.
    """
    if place is not None:
        return store_config(place, limit, memory_bytes=memory_bytes)
    if limit is not None:
        raise UsageMistake("--limit is that of a store; say where it is with --store DIR")
    if memory_bytes is None:
        return None  # the command says that it loads before it imports torch
    from promptcache.kv import StoreConfig

    return StoreConfig(memory_bytes=memory_bytes)


def store_config(place: str, limit: int | None, *, memory_bytes: int | None = None) -> StoreConfig:
    """Return the configuration of a store.

    Args:
        place: A folder or URL.
        limit: Maximum bytes of the folder.
        memory_bytes: Maximum bytes that the engine keeps in memory.
    """
    from promptcache.kv import config_of

    config = config_of(place)
    if limit is not None and config.folder is None:
        raise UsageMistake(f"--limit: {place} is no folder, and only folders have a limit")
    return replace(config, disk_bytes=limit, memory_bytes=memory_bytes)


def open_folder(place: str, limit: int | None = None) -> FileTier:
    """Open the folder of an existing store.

    Raises:
        EnvironmentMissing: There is no such folder, or it is no store.
    """
    from promptcache.kv import FileTier, config_of, expand_home

    if config_of(place).folder is None:
        raise UsageMistake(f"--store {place}: only folders can be looked into")
    folder = expand_home(place)
    if not (folder / "encodings").is_dir():
        if folder.exists():
            what = "is no store: it has no folder 'encodings'" if folder.is_dir() else "is not a folder"
        else:
            what = "does not exist"
        raise EnvironmentMissing(f"store '{place}' {what}; `promptcache warm SCHEMA --store {place}` makes one")
    return FileTier(folder, budget_bytes=limit)
