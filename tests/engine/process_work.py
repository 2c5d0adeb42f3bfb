"""Functions for other processes: engines over one folder, and the number of tokens that they encoded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from promptcache import Engine, StoreConfig
from promptcache.kv import KV, BlobTier, KVShape, Recipe, Store
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

NAMES = [f"m{number:02}" for number in range(12)]
SCHEMA = (
    '<schema name="long">All of it:'
    + "".join(
        f'<module name="{name}">{name} {"tells a long story. " * 6}<module name="more">{name} goes on.</module></module>'
        for name in NAMES
    )
    + "</schema>"
)
PROMPTS = [f'<prompt schema="long"><{a}><more/></{a}><{b}/>What?</prompt>' for a, b in itertools.pairwise(NAMES)]


def engine(folder: str | Path | None, disk_bytes: int | None = None) -> Engine:
    """Return an engine over a folder, or over memory alone."""
    store = None if folder is None else StoreConfig(folder=folder, disk_bytes=disk_bytes)
    made = Engine(tiny_model(), ByteTokenizer(), store=store)
    made.add_schema(SCHEMA)
    return made


def warm(folder: str, ready: Any, go: Any, counts: Any) -> None:
    """Warm on a signal, and report the number of encoded tokens."""
    torch.set_num_threads(1)
    made = engine(folder)
    ready.put(True)
    go.get()
    counts.put(made.warm()[0].num_encoded_tokens)


def warm_for_ever(folder: str, disk_bytes: int) -> None:
    """Warm under a budget, so that encodings are always written and evicted."""
    torch.set_num_threads(1)
    made = engine(folder, disk_bytes)
    (Path(folder) / "started").touch()
    while True:
        made.warm()
        for each in made.keys("long")[::3]:
            made.store.delete(each)


class RecordingStore(Store):
    """Store that records the key of each encoding that is computed."""

    def __init__(self, shape: KVShape, tier: BlobTier, record: Callable[[str], object]) -> None:
        super().__init__(shape, (tier,))
        self._record = record

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KV:
        """Record and store."""
        self._record(recipe.key)
        return super().put(recipe, keys, values)


def replica(tier: BlobTier, record: Callable[[str], object]) -> Engine:
    """Return an engine over a tier that reports the key of each encoding that it computes."""
    model = tiny_model()
    made = Engine(model, ByteTokenizer(), store=RecordingStore(model.shape, tier, record))
    made.add_schema(SCHEMA)
    return made
