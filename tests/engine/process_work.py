"""Functions for other processes: engines over one folder, and the number of tokens that they encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from promptcache import Engine
from promptcache.kv import KV, BlobTier, KVShape, Recipe, Store
from promptcache.testing.tiny_model import tiny_model
from tests.engine.asking import engine_of

NAMES = [f"m{number:02}" for number in range(12)]
SCHEMA = (
    '<schema name="long">All of it:'
    + "".join(
        f'<module name="{name}">{name} {"tells a long story. " * 6}<module name="more">{name} goes on.</module></module>'
        for name in NAMES
    )
    + "</schema>"
)


def engine(store: Any) -> Engine:
    """Return an engine over a store."""
    return engine_of(schema=SCHEMA, store=store)


def warm(folder: str, ready: Any, go: Any, counts: Any) -> None:
    """Warm on a signal, and report the number of encoded tokens."""
    torch.set_num_threads(1)
    made = engine(folder)
    ready.put(True)
    go.get()
    counts.put(made.warm()[0].num_encoded_tokens)


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
    return engine(RecordingStore(tiny_model().shape, tier, record))
