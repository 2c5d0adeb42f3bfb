"""The attention function that this library registers with transformers, and the cache layers by which it knows a pass.

This depends on two undocumented properties of transformers 5.4 to 5.23, which the self-test at load checks: the key
tensor that `update` returns reaches the attention function, and the key-value length of `get_mask_sizes` reaches the
mask function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from promptcache.attention import AttentionCall, PreparedAttention
from promptcache.locks import new_lock

_registering = new_lock()


class Step(Protocol):
    """The KV that the tokens of one forward pass write and attend to."""

    @property
    def attention(self) -> PreparedAttention:
        """Attention over the KV of all their rows."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values `[1, Hkv, T, D]` of the pass's tokens in one layer."""


class StepLayer(CacheLayerMixin):  # type: ignore[no-untyped-call] # the base class is not annotated
    """The cache of one layer during one forward pass. It holds no KV itself."""

    is_sliding = False
    is_compileable = False

    def __init__(self, step: Step, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated
        self.step, self.index = step, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the memory belongs to the rows."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the KV of the pass's tokens, and return it, tagged with this layer for the attention function."""
        self.step.write(self.index, key_states, value_states)
        key_states._promptcache_layer = self  # type: ignore[attr-defined] # the function receives this same tensor
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Return 0: rows differ in length. All positions are explicit."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return a length for which transformers builds no mask."""
        return _UnmaskedLength(query_length), 0

    def get_max_length(self) -> int:
        """Return -1: there is no maximum."""
        return -1

    def get_max_cache_shape(self) -> int:
        """Return -1: there is no maximum (the name before transformers 5.13)."""
        return -1


class _UnmaskedLength(int):
    """A key-value length that tells the mask function to build no mask."""


def step_cache(step: Step, num_layers: int) -> Cache:
    """Return a transformers cache for one forward pass."""
    return Cache(layers=[StepLayer(step, index) for index in range(num_layers)])


def install_attention(hf: Any, stock: str) -> None:
    """Register our attention with transformers for a model, in place of the stock one, "sdpa" or "eager".

    The stock one serves passes over other caches.
    """
    name = f"promptcache_{stock}"
    with _registering:
        AttentionInterface.register(name, _attention_function(stock))
        AttentionMaskInterface.register(name, _mask_function(stock))
    hf.set_attn_implementation(name)


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
        layer: StepLayer | None = getattr(key, "_promptcache_layer", None)
        if layer is None:
            is_eager = stock == "eager"
            code: Any = sys.modules[type(module).__module__]
            own: _AttentionFunction = code.eager_attention_forward if is_eager else ALL_ATTENTION_FUNCTIONS[stock]
            return own(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        call = AttentionCall(
            query,
            key,
            value,
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=kwargs.get("sliding_window"),
            softcap=kwargs.get("softcap"),
            sinks=kwargs.get("s_aux", getattr(module, "sinks", None)),
        )
        return layer.step.attention.run(layer.index, call), None

    return attention


def _mask_function(stock: str) -> Callable[..., torch.Tensor | None]:
    def mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        if any(isinstance(size, _UnmaskedLength) for size in (*args, *kwargs.values())):
            return None
        own: Callable[..., torch.Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS[stock]
        return own(*args, **kwargs)

    return mask
