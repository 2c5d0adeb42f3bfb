"""The attention function that this library registers with transformers, and the base class of cache layers for it.

The function finds the cache layer of a forward pass and calls its `attend`. This depends on two undocumented
properties of transformers 5.4 to 5.23, which the self-test at load checks: the key tensor that `update` returns
reaches the attention function, and the key-value length of `get_mask_sizes` reaches the mask function.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from promptcache.attention import AttentionCall

STOCK_IMPLEMENTATIONS = ("sdpa", "eager")


class AttendingLayer(CacheLayerMixin):  # type: ignore[no-untyped-call] # the base class is not annotated
    """A cache layer that computes attention itself.

    A subclass returns `self.tagged(keys)` from `update`, and `self.unmasked(length)` from `get_mask_sizes`.
    """

    is_sliding = False
    is_compileable = False

    @abstractmethod
    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return the attention `[B, T, Hq, D]` of the newest tokens; keys and values are the result of `update`."""

    def get_max_length(self) -> int:
        """Return -1: there is no maximum."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Return -1: there is no maximum (the name before transformers 5.13)."""
        return -1

    def tagged(self, keys: torch.Tensor) -> torch.Tensor:
        """Return `keys` with a tag by which the attention function finds this layer."""
        keys._promptcache_layer = self  # type: ignore[attr-defined] # the attention function receives this same tensor
        return keys

    @staticmethod
    def unmasked(length: int) -> int:
        """Return a key-value length for which transformers builds no mask."""
        return _UnmaskedLength(length)


class _UnmaskedLength(int):
    """A key-value length that tells the mask function to build no mask."""


def implementation_name(stock: str) -> str:
    """Return the registered name of our attention for models whose own attention is `stock`."""
    return f"promptcache_{stock}"


def register() -> None:
    """Register our attention with transformers, once for each stock implementation that it replaces."""
    for stock in STOCK_IMPLEMENTATIONS:
        AttentionInterface.register(implementation_name(stock), _attention_function(stock))
        AttentionMaskInterface.register(implementation_name(stock), _mask_function(stock))


_AttentionFunction: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def _attention_function(stock: str) -> _AttentionFunction:
    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer: AttendingLayer | None = getattr(key, "_promptcache_layer", None)
        if layer is None:
            stock_attention = _stock_attention(stock, module)
            return stock_attention(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        call = AttentionCall(
            query,
            key,
            value,
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=kwargs.get("sliding_window"),
            softcap=kwargs.get("softcap"),
            sinks=kwargs.get("s_aux", getattr(module, "sinks", None)),
        )
        return layer.attend(call), None

    return attention


def _stock_attention(stock: str, module: torch.nn.Module) -> _AttentionFunction:
    if stock == "eager":
        own: _AttentionFunction = sys.modules[type(module).__module__].eager_attention_forward
        return own
    found: _AttentionFunction = ALL_ATTENTION_FUNCTIONS[stock]
    return found


def _mask_function(stock: str) -> Callable[..., torch.Tensor | None]:
    def mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        if any(isinstance(size, _UnmaskedLength) for size in (*args, *kwargs.values())):
            return None
        own: Callable[..., torch.Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS[stock]
        return own(*args, **kwargs)

    return mask
