"""Inputs for the caller's own loop: a linked prompt as keywords of transformers' `generate` or of the model.

The cache is that of linking, which keeps stored KV where it is, or a plain `DynamicCache` with a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from promptcache.diagnostics import InvalidValue, Unpicklable, UnsupportedModel
from promptcache.layout import RequestTokens
from promptcache.runtime.attention import PositionArray
from promptcache.runtime.executor import Executor
from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.runtime.hf.positioned_cache import PositionedCache, PositionedDynamicCache
from promptcache.runtime.link import Linked

_CACHE = "past_key_values"


class ModelInputs(Unpicklable, Mapping[str, Any]):
    """Inputs of the model for one prompt: `model.generate(**inputs)` or `model(**inputs)`.

    The keys are `input_ids` and `position_ids` `[1, N]`, `attention_mask` and `past_key_values`. They serve one
    generation: the cache grows with it. Afterwards each input can still be read, and `**inputs` is an error.

    Attributes:
        next_position: Position of the first generated token. Each later one has the next position.
        copied_bytes: Bytes of KV that were copied into the cache.
    """

    _instead = "link the prompt in the process that generates"

    def __init__(self, cache: Any, token_ids: torch.Tensor, position_ids: torch.Tensor, copied_bytes: int) -> None:
        """Create inputs.

        Args:
            cache: Holds the KV of all tokens before `token_ids`.
            token_ids: Tokens that have no KV yet, `[1, N]`.
            position_ids: Their positions, `[1, N]`; the last one is the highest of the prompt.
        """
        self.next_position = int(position_ids[0, -1]) + 1
        self.copied_bytes = copied_bytes
        self._num_held = self._length(cache)
        mask = torch.ones((1, self._num_held + token_ids.shape[1]), dtype=torch.long, device=token_ids.device)
        self._inputs = {
            "input_ids": token_ids,
            "position_ids": position_ids,
            "attention_mask": mask,
            _CACHE: cache,
        }

    def __getitem__(self, name: str) -> Any:
        return self._inputs[name]

    def __iter__(self) -> Iterator[str]:
        self._check_unused()
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    def __repr__(self) -> str:
        num_new = self._inputs["input_ids"].shape[1]
        return f"<{type(self).__name__}: {num_new} new tokens, next position {self.next_position}>"

    def _check_unused(self) -> None:
        grown = self._length(self._inputs[_CACHE]) - self._num_held
        if grown:
            raise InvalidValue(
                f"these inputs were used: their cache holds {grown} more tokens. Link the prompt again for another "
                "generation; to continue this one, feed the next token with its position and the same cache"
            )

    @staticmethod
    def _length(cache: Any) -> int:
        return int(cache.get_seq_length())


@torch.no_grad()
def linked_inputs(tokens: RequestTokens, executor: Executor) -> ModelInputs:
    """Return inputs whose cache attends to stored KV where it is."""
    model, linked = executor.model, executor.link(tokens)
    cache = PositionedCache(layers=linked.cache.layers)
    cache.place(linked.positions.of_own_tokens(0, len(linked.token_ids))[None], model.hf, model.guard)
    return _inputs(model, cache, linked, 0, linked.copied_bytes)


@torch.no_grad()
def dynamic_cache_inputs(tokens: RequestTokens, executor: Executor) -> ModelInputs:
    """Return inputs whose cache is a `DynamicCache` of transformers with a copy of all KV in position order.

    All new tokens but the last are prefilled: masks over a `DynamicCache` follow the order of its tokens, and new
    tokens may lie between stored ones.

    Raises:
        UnsupportedModel: The model has sliding windows, which such a cache counts in tokens, and the prompt has a gap
            in its positions that a window reaches over.
    """
    model, linked = executor.model, executor.link(tokens)
    num_before = len(linked.token_ids) - 1
    positions = _positions(linked)
    _check_windows(np.sort(positions), model)
    if num_before:
        token_ids = token_tensor(linked.token_ids[:num_before], model.device)
        position_ids = token_tensor(linked.position_ids[:num_before], model.device)
        model.encode(token_ids, position_ids, linked.cache)
    order = torch.from_numpy(np.argsort(positions[:-1])).to(model.device)
    cache = PositionedDynamicCache()  # it holds all tokens, also beyond a sliding window
    for index, (keys, values) in enumerate(_layers(linked, order) if len(order) else ()):
        cache.update(keys, values, index)
    cache.place(np.sort(positions)[None], model.hf, model.guard, is_shared=True)
    return _inputs(model, cache, linked, num_before, len(order) * model.shape.token_bytes)


def _inputs(model: Model, cache: Any, linked: Linked, start: int, copied_bytes: int) -> ModelInputs:
    token_ids = token_tensor(linked.token_ids[start:], model.device)
    position_ids = token_tensor(linked.position_ids[start:], model.device)
    return ModelInputs(cache, token_ids, position_ids, copied_bytes)


def _positions(linked: Linked) -> PositionArray:
    """Return the positions of stored tokens, and of own tokens behind them."""
    arrays = [segment.position_array() for segment in linked.positions.segments]
    return np.concatenate([*arrays, linked.positions.of_own_tokens(0, len(linked.token_ids))])


def _layers(linked: Linked, order: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield keys and values `[1, Hkv, T, D]` of each layer in `order`, of stored tokens and of own tokens with KV."""
    stored = [segment.layers().by_layer for segment in linked.positions.segments]
    num_stored = linked.positions.num_cached
    for index, layer in enumerate(linked.cache.layers):
        parts = [views[index] for views in stored]
        if len(order) > num_stored:
            parts.append(layer.tail())
        keys, values = (torch.cat(states, dim=2)[:, :, order] for states in zip(*parts, strict=True))
        yield keys, values


def _check_windows(positions: PositionArray, model: Model) -> None:
    """Refuse positions whose last window of tokens has a gap.

    Args:
        positions: Of all tokens of the prompt, ascending.
    """
    window = model.facts.window
    if window is None:
        return
    for before, after in pairwise(positions[-window:].tolist()):
        if after != before + 1:
            raise UnsupportedModel(
                f"{model.facts.name} has sliding windows of {window} positions, and a DynamicCache counts them in "
                f"tokens: this prompt has no token between positions {before} and {after}, so its windows would reach "
                "too far. Use link()"
            )
