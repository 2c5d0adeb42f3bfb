"""Caches for the caller's own loops, with the positions of their tokens.

Transformers makes missing position IDs from the number of tokens in a cache. This is wrong if positions have gaps. A
hook of the model gives each forward pass over such a cache the right ones, and refuses positions that cannot be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet, ref

import numpy as np
import torch
from torch.amp import is_autocast_available
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache

from promptcache.attention import PositionArray
from promptcache.diagnostics import InvalidValue, UnsupportedModel, counted, shown
from promptcache.locks import new_lock
from promptcache.model.facts import COMPILED
from promptcache.model.guard import ModelGuard
from promptcache.model.hook import StepLayer

_OTHER_MODEL = (
    "this cache belongs to engine.model.hf, which knows its positions; another model cannot continue it. Call "
    "engine.model.hf, with past_key_values by name"
)
_watched: WeakSet[torch.nn.Module] = WeakSet()
_watching = new_lock()


class PositionedCache(Cache):
    """A cache that only a watched model can feed, at the positions of `next_positions`.

    Attributes:
        base: The layers of the model that may feed it. A copy of the cache has the same ones.
        guard: Checks that the model is the one that computed the KV.
    """

    base: ref[torch.nn.Module]
    guard: ref[ModelGuard]
    _positions: PositionArray  # [T]
    _num_allowed: float = math.inf  # tokens that its layers may hold
    _token_ids: torch.Tensor | None  # [1, T]

    def place(
        self, positions: PositionArray, hf: Any, guard: ModelGuard, *, token_ids: torch.Tensor | None = None
    ) -> None:
        """Set the positions `[T]` of the tokens that transformers counts; each later one follows the one before it.

        Args:
            positions: Those of each row.
            hf: The model that may feed the cache.
            guard: That of the model.
            token_ids: The tokens `[1, T]`, those of the cache first. If the first pass gets all of them, it computes
                only those that the cache lacks.
        """
        self._positions, self.base, self.guard = positions, ref(hf.base_model), ref(guard)
        self._token_ids = token_ids
        self._num_allowed = self.get_seq_length()

    def holds_beginning(self, tokens: torch.Tensor, mask: Any, positions: torch.Tensor | None) -> bool:
        """Whether a pass gets the whole prompt, as transformers feeds it where a draft is checked first.

        Args:
            mask: The attention mask of the pass; that of a whole prompt has a column for each token.
            positions: Its position IDs; those of a whole prompt begin with 0.
        """
        known, num_held, num_tokens = self._token_ids, self.get_seq_length(), tokens.shape[1]
        if known is None or tokens.ndim != 2 or not 0 < num_held < known.shape[1] <= num_tokens:
            return False
        is_whole = isinstance(mask, torch.Tensor) and mask.shape[-1] == num_tokens
        is_whole |= positions is not None and int(positions[0, 0]) == 0
        return is_whole and bool((tokens[:, :num_held] == known[:, :num_held]).all())

    def next_positions(self, num_tokens: int) -> PositionArray:
        """Return the positions `[num_tokens]` of the next tokens to feed."""
        known, start = self._positions, self.get_seq_length()
        beyond = np.arange(max(start, len(known)), start + num_tokens, dtype=np.int64) - len(known)
        return np.concatenate([known[start : start + num_tokens], known[-1:] + 1 + beyond])

    def expect(self, num_rows: int, num_tokens: int) -> None:
        """Allow the layers to grow by the tokens of one forward pass.

        Args:
            num_rows: Number of rows that are fed: that of the cache, or a multiple for beams and returned sequences.
        """
        held: torch.Tensor | None = getattr(self.layers[0], "keys", None) if self.layers else None
        num_held = num_rows if held is None else len(held)
        if num_rows % num_held:
            raise InvalidValue(f"the cache has {num_held} rows, and {num_rows} rows of tokens are fed")
        if num_rows > num_held:
            self.batch_repeat_interleave(num_rows // num_held)
        self._num_allowed = self.get_seq_length() + num_tokens

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append tokens to a layer.

        Raises:
            InvalidValue: The model is not watched.
        """
        if self.get_seq_length(layer_idx) + key_states.shape[2] > self._num_allowed:
            raise InvalidValue(_OTHER_MODEL)
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return updated


class PositionedDynamicCache(PositionedCache, DynamicCache):
    """A `PositionedCache` that is also a `DynamicCache`."""


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
    if torch.compiler.is_compiling():
        _refuse_compiled(type(module).__name__)
    device = next(module.parameters()).device.type
    if is_autocast_available(device) and torch.is_autocast_enabled(device):
        raise InvalidValue(
            "torch.autocast is on, and stored KV has the dtype of the model: call the model outside of autocast, or in "
            f"torch.autocast('{device}', enabled=False)"
        )
    if module is not cache.base():
        raise InvalidValue(_OTHER_MODEL)
    if (guard := cache.guard()) is not None:
        guard.check()
    named = (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
    tokens: torch.Tensor = next(each for each in named if each is not None)
    if cache.holds_beginning(tokens, kwargs.get("attention_mask"), kwargs.get("position_ids")):
        tokens = tokens[:, cache.get_seq_length() :]
        given = {} if args else {"input_ids": tokens}
        args, kwargs = (tokens, *args[1:]) if args else args, {**kwargs, **given, "position_ids": None}
    num_rows, num_tokens = tokens.shape[:2]
    if not num_tokens:
        raise InvalidValue(
            f"no tokens are left to feed: the cache holds {counted(cache.get_seq_length(), 'token')}, and transformers "
            "takes as many of input_ids for computed. Pass the tokens that the cache lacks, with an attention_mask of "
            "ones over the tokens of the cache and these"
        )
    _check_mask(kwargs.get("attention_mask"), num_tokens, cache)
    positions = torch.from_numpy(cache.next_positions(num_tokens)).to(tokens.device).repeat(num_rows, 1)
    _check_positions(kwargs.get("position_ids"), positions, cache)
    cache.expect(num_rows, num_tokens)
    return args, {**kwargs, "position_ids": positions}


@torch.compiler.disable  # type: ignore[untyped-decorator] # not annotated
def _refuse_compiled(name: str) -> None:
    """Raise the error when the compiled model runs: one that is raised while it is traced would not be shown."""
    raise UnsupportedModel(COMPILED.format(name))


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
    if cache.layers and isinstance(cache.layers[0], StepLayer) and not mask.all():  # no mask is used
        raise InvalidValue("attention_mask has zeros, and this cache has no padding: leave the mask out")


def _check_positions(given: torch.Tensor | None, positions: torch.Tensor, cache: PositionedCache) -> None:
    """Refuse positions that are neither those of the cache nor the counted ones, which transformers makes."""
    if given is None:
        return
    num_tokens, num_held = positions.shape[1], cache.get_seq_length()
    if given.shape[-1] == num_tokens:
        counted_ones = torch.arange(num_held, num_held + num_tokens, device=given.device)
        if bool((given == counted_ones).all()) or bool((given == positions).all()):
            return
    raise InvalidValue(
        f"position_ids={shown(given.tolist())}, and this cache goes on with {shown(positions.tolist())}: leave "
        "position_ids out, or pass these. A cache serves one generation"
    )
