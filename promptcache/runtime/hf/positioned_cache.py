"""Caches for loops of the caller, which know the positions of their tokens.

Transformers makes missing position IDs from the number of tokens in a cache. This is wrong if positions have gaps. A
hook of the model gives each forward pass over such a cache the right ones, and refuses what cannot be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from promptcache.diagnostics import InvalidValue, counted
from promptcache.locks import new_lock
from promptcache.runtime.attention import PositionArray
from promptcache.runtime.hf.hook import AttendingLayer

_watched: WeakSet[torch.nn.Module] = WeakSet()
_watching = new_lock()


class PositionedCache(Cache):
    """A cache that only a watched model can feed, at the positions of `next_positions`."""

    _positions: PositionArray
    _num_allowed: float = math.inf  # tokens that its layers may hold

    def place(self, positions: PositionArray) -> None:
        """Set the positions of the tokens that transformers counts; each later token follows the one before it.

        Without gaps, plain layers may also be fed by a model that is not watched.
        """
        self._positions = positions
        if self.attends or positions[-1] != len(positions) - 1:
            self._num_allowed = self.get_seq_length()

    @property
    def attends(self) -> bool:
        """Whether its layers compute attention by positions, without a mask."""
        return bool(self.layers) and isinstance(self.layers[0], AttendingLayer)

    def next_positions(self, num_tokens: int) -> PositionArray:
        """Return the positions of the next tokens to feed."""
        start, known = self.get_seq_length(), self._positions
        stop = start + num_tokens
        beyond = np.arange(max(start, len(known)), max(stop, len(known)), dtype=np.int64) - len(known)
        return np.concatenate([known[start:stop], known[-1] + 1 + beyond])

    def expect(self, num_tokens: int) -> None:
        """Allow the layers to grow by the tokens of one forward pass."""
        if self._num_allowed < math.inf:
            self._num_allowed = self.get_seq_length() + num_tokens

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append tokens to a layer.

        Raises:
            InvalidValue: The model is not watched.
        """
        if self.get_seq_length(layer_idx) + key_states.shape[2] > self._num_allowed:
            raise InvalidValue(
                "this cache belongs to engine.model.hf, which knows its positions; another model cannot continue it. "
                "Call engine.model.hf, with past_key_values by name"
            )
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return updated


class PositionedDynamicCache(PositionedCache, DynamicCache):
    """The same as a `DynamicCache`."""


def watch_positions(hf: PreTrainedModel) -> None:
    """Add the hook that gives forward passes over a `PositionedCache` their positions; once for each model."""
    base: Any = hf.base_model
    with _watching:
        if base not in _watched:
            base.register_forward_pre_hook(_with_positions, with_kwargs=True)
            _watched.add(base)


def _with_positions(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    cache = kwargs.get("past_key_values")
    if not isinstance(cache, PositionedCache):
        return None
    named = (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
    tokens: torch.Tensor = next(each for each in named if each is not None)
    num_rows, num_tokens = tokens.shape[:2]
    num_held = cache.get_seq_length()
    positions = cache.next_positions(num_tokens)
    _check_tokens(num_tokens, num_held)
    _check_mask(kwargs.get("attention_mask"), num_tokens, cache)
    _check_positions(kwargs.get("position_ids"), positions, num_held)
    cache.expect(num_tokens)
    position_ids = torch.from_numpy(positions).to(tokens.device).expand(num_rows, -1)
    return args, {**kwargs, "position_ids": position_ids}


def _check_tokens(num_tokens: int, num_held: int) -> None:
    if not num_tokens:
        raise InvalidValue(
            f"no tokens are left to feed: the cache holds {counted(num_held, 'token')}, and transformers takes as many "
            "of input_ids for computed. Pass the tokens that the cache lacks, with an attention_mask of ones over the "
            "tokens of the cache and these"
        )


def _check_mask(mask: Any, num_tokens: int, cache: PositionedCache) -> None:
    """Refuse a mask of another length than that of the cache with the new tokens, and one that would be ignored."""
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        return
    num_held = cache.get_seq_length()
    if mask.shape[1] != num_held + num_tokens:
        raise InvalidValue(
            f"attention_mask has {mask.shape[1]} columns, and {num_held + num_tokens} are expected: {num_held} for the "
            f"tokens of the cache and {num_tokens} for the new ones. Leave it out, or pass ones of this length"
        )
    if cache.attends and not mask.all():
        raise InvalidValue("attention_mask has zeros, and this cache has no padding: leave the mask out")


def _check_positions(given: torch.Tensor | None, positions: PositionArray, num_held: int) -> None:
    """Refuse positions that are neither those of the cache nor those that transformers makes by counting its tokens."""
    if given is None:
        return
    counted_from = np.arange(num_held, num_held + len(positions))
    if given.shape[-1] != len(positions) or not any(
        bool((given.cpu() == torch.from_numpy(each)).all()) for each in (positions, counted_from)
    ):
        raise InvalidValue(
            f"position_ids begin with {given.flatten()[:1].tolist()}, and the next {len(positions)} positions of this "
            f"cache are {_shown(positions)}: leave position_ids out, or pass these. A cache serves one generation"
        )


def _shown(positions: PositionArray) -> str:
    first, last = int(positions[0]), int(positions[-1])
    return str(first) if len(positions) == 1 else f"{first} to {last}"
