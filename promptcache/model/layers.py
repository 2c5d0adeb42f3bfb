"""The part of a model that relocation needs: its layers, which run over tokens at given positions."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache

from promptcache.kv import KVShape
from promptcache.model.facts import Facts


class ModelLayers(Protocol):
    """The layers of a model. `Model` is one."""

    @property
    def hf(self) -> Any:
        """The model of transformers."""

    @property
    def shape(self) -> KVShape:
        """The shape of its KV."""

    @property
    def facts(self) -> Facts:
        """Facts from its configuration."""

    @property
    def device(self) -> torch.device:
        """The device of its inputs."""

    @property
    def context_length(self) -> int:
        """The number of its positions."""

    @property
    def num_known_tokens(self) -> int:
        """The number of tokens that it has embeddings for."""

    def encode(self, token_ids: torch.Tensor, position_ids: torch.Tensor, cache: Cache) -> None:
        """Run the layers over new tokens `[B, T]`; the cache grows by their KV."""

    @staticmethod
    def plain_cache(num_layers: int) -> Cache:
        """Return an empty cache of plain layers."""
