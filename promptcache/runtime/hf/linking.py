"""The two strategies of linking stored KV with new tokens.

`SEGMENTED` attends to KV where it is stored. `CONCATENATED` copies it into plain caches of transformers, for models
whose attention cannot be replaced. The self-test at load chooses the strategy of a model.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from promptcache.runtime.attention import Positions, RequestPositions
from promptcache.runtime.hf.layers import ModelLayers
from promptcache.runtime.hf.segmented import segmented_cache

StopCheck: TypeAlias = Callable[[], None]
"""Raises an error to end a forward pass early."""


class Linking(ABC):
    """A strategy of linking. It has no state, so all models share its one object.

    Attributes:
        name: "segmented" or "concatenated".
        takes_rows: Whether several requests, or several encodings, can share one forward pass.
    """

    name: ClassVar[str]
    takes_rows: ClassVar[bool]

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def cache(self, model: ModelLayers, positions: Positions) -> Cache:
        """Return a cache over stored KV with an empty tail."""

    @abstractmethod
    def mask(self, model: ModelLayers, positions: RequestPositions, num_new: int) -> Any:
        """Return the mask of the first `num_new` own tokens; None if attention uses positions itself."""

    @abstractmethod
    def own_kv(self, layer: Any, positions: RequestPositions) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values `[B, Hkv, n, D]` of the own tokens in one layer of a cache."""

    @abstractmethod
    def encode(
        self,
        model: ModelLayers,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        positions: RequestPositions,
        chunk_tokens: int,
        check: StopCheck | None = None,
    ) -> Cache:
        """Run the layers over tokens `[B, T]` and return the cache with their KV.

        Args:
            chunk_tokens: Maximum number of tokens of a row in one forward pass, if rows can be cut.
            check: Called in each layer. What it raises ends the forward pass.
        """

    @abstractmethod
    def prefill_before_generate(
        self,
        model: ModelLayers,
        cache: Cache,
        token_ids: Sequence[int],
        positions: RequestPositions,
        *,
        num_before: int,
        num_rows: int,
    ) -> int:
        """Prefill the new tokens that transformers' `generate` cannot, and return their number.

        Args:
            token_ids: The new tokens.
            num_before: Number of new tokens that lie before a token of history.
            num_rows: Number of rows that `generate` makes of the request: beams or returned sequences.
        """

    @abstractmethod
    def generator(self, model: ModelLayers, positions: RequestPositions) -> Any:
        """Return the transformers model whose `generate` takes all own tokens of a request, cached ones included."""


class _Segmented(Linking):
    name = "segmented"
    takes_rows = True

    def cache(self, model: ModelLayers, positions: Positions) -> Cache:
        return segmented_cache(positions, model.shape.num_layers)

    def mask(self, model: ModelLayers, positions: RequestPositions, num_new: int) -> None:
        return None

    def own_kv(self, layer: Any, positions: RequestPositions) -> tuple[torch.Tensor, torch.Tensor]:
        tail: tuple[torch.Tensor, torch.Tensor] = layer.tail()
        return tail

    def encode(
        self,
        model: ModelLayers,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        positions: RequestPositions,
        chunk_tokens: int,
        check: StopCheck | None = None,
    ) -> Cache:
        cache = checked_cache(self.cache(model, positions), check)
        for start in range(0, token_ids.shape[1], chunk_tokens):
            stop = start + chunk_tokens
            model.encode(token_ids[:, start:stop], position_ids[:, start:stop], cache)
        return cache

    def prefill_before_generate(
        self,
        model: ModelLayers,
        cache: Cache,
        token_ids: Sequence[int],
        positions: RequestPositions,
        *,
        num_before: int,
        num_rows: int,
    ) -> int:
        if num_before:
            model.encode(*_inputs(model, token_ids, positions, num_before), cache)
        return num_before

    def generator(self, model: ModelLayers, positions: RequestPositions) -> Any:
        return model.hf


class _CheckedCache(Cache):
    """A cache that calls a function before each layer writes its KV. The function may raise to end the forward pass."""

    def __init__(self, layers: list[Any], check: StopCheck) -> None:
        super().__init__(layers=layers)
        self._check = check

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Check, then add the KV of new tokens to a layer."""
        self._check()
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


def checked_cache(cache: Cache, check: StopCheck | None) -> Cache:
    """Return a cache that calls `check` in each layer; the same cache without one."""
    return cache if check is None else _CheckedCache(cache.layers, check)


class _OwnAndStored(DynamicLayer):
    """The cache of one layer of a request: stored tokens, then own ones."""

    def __init__(self, num_stored: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated
        self._num_stored = num_stored

    def crop(self, tokens: int) -> None:
        """Drop own tokens: the last `-tokens`, or in transformers 5.4 all behind the first `tokens` own ones."""
        super().crop(tokens + self._num_stored if tokens > 0 else tokens)


class _Concatenated(Linking):
    name = "concatenated"
    takes_rows = False

    def cache(self, model: ModelLayers, positions: Positions) -> Cache:
        layers: list[Any] = [_OwnAndStored(positions.num_cached) for _ in range(model.shape.num_layers)]
        cache = Cache(layers=layers)
        if positions.segments:
            views = [segment.layers().by_layer for segment in positions.segments]
            for layer, parts in zip(layers, zip(*views, strict=True), strict=True):
                layer.update(*(torch.cat(states, dim=2) for states in zip(*parts, strict=True)))
        return cache

    def mask(self, model: ModelLayers, positions: RequestPositions, num_new: int) -> Any:
        """Return the mask by position over all cached and own tokens.

        Transformers' own masks follow the order of the cache, which is not the order of positions when an argument
        lies between modules.
        """
        own = positions.of_own_tokens(0, num_new)
        keys = np.concatenate([*(segment.position_array() for segment in positions.segments), own])
        distance = torch.from_numpy(own[:, None] - keys[None, :])  # [T, P + T]
        return model.attention_masks(distance >= 0, distance)

    def own_kv(self, layer: Any, positions: RequestPositions) -> tuple[torch.Tensor, torch.Tensor]:
        start = positions.num_cached
        return layer.keys[:, :, start:], layer.values[:, :, start:]

    def encode(
        self,
        model: ModelLayers,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        positions: RequestPositions,
        chunk_tokens: int,
        check: StopCheck | None = None,
    ) -> Cache:
        cache = checked_cache(self.cache(model, positions), check)
        model.encode(token_ids, position_ids, cache, self.mask(model, positions, token_ids.shape[1]))
        return cache

    def prefill_before_generate(
        self,
        model: ModelLayers,
        cache: Cache,
        token_ids: Sequence[int],
        positions: RequestPositions,
        *,
        num_before: int,
        num_rows: int,
    ) -> int:
        """Prefill all new tokens but the last, because `generate` takes no mask by position."""
        before = len(token_ids) - 1
        if before:
            inputs = _inputs(model, token_ids, positions, before)
            model.encode(*inputs, cache, self.mask(model, positions, before))
        if num_rows > 1:
            cache.batch_repeat_interleave(num_rows)
        return before

    def generator(self, model: ModelLayers, positions: RequestPositions) -> Any:
        """Return a view of the model that feeds the own tokens that are not in the cache.

        transformers would cut the own tokens by the length of the cache, which counts stored tokens as well. The mask
        is made here because, with drafts, transformers 5.4 cuts it to the number of own tokens. The view shares the
        weights with the model, which is not changed.
        """
        num_stored = positions.num_cached
        prepare = model.hf.prepare_inputs_for_generation

        @wraps(prepare)
        def prepare_over_stored(input_ids: torch.Tensor, **given: Any) -> Any:
            num_held = given["past_key_values"].get_seq_length() - num_stored
            given["next_sequence_length"] = input_ids.shape[1] - num_held
            given["attention_mask"] = input_ids.new_ones((len(input_ids), num_stored + input_ids.shape[1]))
            return prepare(input_ids, **given)

        view = copy.copy(model.hf)
        view.prepare_inputs_for_generation = prepare_over_stored
        return view


def _inputs(
    model: ModelLayers, token_ids: Sequence[int], positions: RequestPositions, stop: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first `stop` new tokens and their positions, each `[1, T]`."""
    ids = torch.tensor([token_ids[:stop]], device=model.device)
    return ids, torch.from_numpy(positions.of_own_tokens(0, stop))[None].to(model.device)


SEGMENTED = _Segmented()
CONCATENATED = _Concatenated()
