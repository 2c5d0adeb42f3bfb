"""Segmented attention inside transformers: a cache layer that holds views, and the attention function that reads them.

Comes in: a timeline of segments, and forward passes by transformers. Goes out: attention outputs, computed without
copying any stored KV. Rests on the attention interface and on two of its undocumented habits, which the self-test at
load checks: the key tensor that `update` returns reaches the attention function, and the key-value length of
`get_mask_sizes` reaches the mask function (transformers 5.4 to 5.23).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from promptcache.runtime.attention import Fold, Partial, attend_shared, merge
from promptcache.runtime.kernels import Kernel, attend, kernel_for
from promptcache.runtime.segments import AnyTimeline, Sights

STOCK_IMPLEMENTATIONS = ("sdpa", "eager")
_FIRST_CAPACITY = 64


def implementation_name(stock: str) -> str:
    """Return the name under which segmented attention is registered for models whose own attention is `stock`."""
    return f"promptcache_{stock}"


class SegmentedLength(int):
    """A key-value length that tells the mask function that segmented attention needs no mask."""


class SegmentedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call] # the base class is not annotated
    """One layer's cache: a timeline's segments, shared and never written, and a private tail that grows in place."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self, timeline: AnyTimeline, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated
        self.timeline = timeline
        self.index = index
        self.num_own = 0
        self._tail_keys = self._tail_values = torch.empty(0)  # [B, Hkv, C, D] once there are own tokens

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the tail; `[B, Hkv, C, D]`."""
        capacity = max(_FIRST_CAPACITY, key_states.shape[2] + _FIRST_CAPACITY)
        self._tail_keys, self._tail_values = (_resized(states, capacity, 0) for states in (key_states, value_states))
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append own tokens and return the tail, tagged with this layer for the attention function."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        stop = self.num_own + key_states.shape[2]
        if stop > self._tail_keys.shape[2]:
            self._change(lambda tail: _resized(tail, 2 * stop, self.num_own))
        self._tail_keys[:, :, self.num_own : stop] = key_states
        self._tail_values[:, :, self.num_own : stop] = value_states
        self.num_own = stop
        keys, values = self.tail()
        keys._promptcache_layer = self  # type: ignore[attr-defined] # the way to reach the attention function
        return keys, values

    def tail(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the own tokens' keys and values, `[B, Hkv, n, D]`."""
        return self._tail_keys[:, :, : self.num_own], self._tail_values[:, :, : self.num_own]

    def get_seq_length(self) -> int:
        """Cached and own tokens together."""
        return self.timeline.num_cached + self.num_own

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The length that the next forward attends to, marked so that no mask is built for it."""
        return SegmentedLength(self.get_seq_length() + query_length), 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    def get_max_cache_shape(self) -> int:
        """No maximum (the name before transformers 5.13)."""
        return -1

    def crop(self, tokens: int) -> None:
        """Forget the last `-tokens` own tokens; if positive, all but the first `tokens` own ones.

        Assisted decoding takes back rejected candidates: by a negative number (transformers 5.23), or by the length of
        its IDs less one (5.4), which counts own tokens only, for `generate` is given no others.
        """
        kept = self.num_own + tokens if tokens <= 0 else tokens
        self.num_own = max(0, min(self.num_own, kept))

    def reset(self) -> None:
        """Forget the own tokens; stored KV is not ours to clear."""
        self.num_own = 0

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the tail; segments serve any number of rows."""
        self._change(lambda tail: tail.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows of the tail."""
        self._change(lambda tail: tail[indices])

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the rows of the tail for beam search."""
        self._change(lambda tail: tail.index_select(0, beam_idx.to(tail.device)))

    def _change(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        if self.is_initialized:
            self._tail_keys, self._tail_values = change(self._tail_keys), change(self._tail_values)


def segmented_cache(timeline: AnyTimeline, num_layers: int) -> Cache:
    """Return a transformers cache over the segments of `timeline` with an empty tail."""
    return Cache(layers=[SegmentedLayer(timeline, index) for index in range(num_layers)])


def register() -> None:
    """Make segmented attention known to transformers, beside each stock implementation it may have to stand in for."""
    for stock in STOCK_IMPLEMENTATIONS:
        AttentionInterface.register(implementation_name(stock), _attention_function(stock))
        AttentionMaskInterface.register(implementation_name(stock), _mask_function(stock))


def _resized(states: torch.Tensor, capacity: int, kept: int) -> torch.Tensor:
    batch, heads, _, width = states.shape
    resized = states.new_empty((batch, heads, capacity, width))
    resized[:, :, :kept] = states[:, :, :kept]
    return resized


def _attention_function(stock: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer = getattr(key, "_promptcache_layer", None)
        if layer is None:
            stock_attention = _stock_attention(stock, module)
            return stock_attention(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        sinks = kwargs.get("s_aux", getattr(module, "sinks", None))
        out = _segmented_attention(
            layer, query, key, value, scale, kwargs.get("sliding_window"), kwargs.get("softcap"), sinks
        )
        return out, None

    return attention


_AttentionFunction: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def _stock_attention(stock: str, module: torch.nn.Module) -> _AttentionFunction:
    if stock == "eager":
        own: _AttentionFunction = sys.modules[type(module).__module__].eager_attention_forward
        return own
    found: _AttentionFunction = ALL_ATTENTION_FUNCTIONS[stock]
    return found


def _segmented_attention(
    layer: SegmentedLayer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return the attention of `query [B, Hq, T, D]` over the segments and the tail `key [B, Hkv, n, D]`, as
    `[B, T, Hq, D]`."""
    sights = layer.timeline.sights(layer.num_own, query.shape[2], window)
    fold = Fold.of(query, key.shape[1])
    folded = fold.fold(query)
    kernel = kernel_for(folded, key, value, scale=scale, softcap=softcap)
    partials = _attend_tail(query, key, value, folded, fold, kernel, scale, softcap, sights)
    for views, sight in sights.looks:
        keys, values = views.by_layer[layer.index]
        if sight is None:
            partials.append(Partial(*kernel(folded.expand(len(keys), -1, -1, -1), keys, values)))
            continue
        partials.append(
            attend_shared(
                folded,
                fold,
                keys,
                values,
                scale=scale,
                first_token=sight.first_row,
                rows=sight.rows,
                mask=sight.mask,
                unseen=sight.unseen,
                softcap=softcap,
            )
        )
    return fold.unfold(merge(partials, fold, sinks))


def _attend_tail(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    folded: torch.Tensor,
    fold: Fold,
    kernel: Kernel,
    scale: float,
    softcap: float | None,
    sights: Sights,
) -> list[Partial]:
    rows, num_own = query.shape[2], key.shape[2]
    if fold.batch == rows == 1 and sights.tail_mask is None:
        return [Partial(*kernel(folded, key, value))]

    def partial(out: torch.Tensor, lse: torch.Tensor) -> Partial:
        return Partial(fold.fold(out), fold.fold_lse(lse))

    if sights.tail_mask is not None or rows == 1:
        return [partial(*attend(query, key, value, scale=scale, mask=sights.tail_mask, softcap=softcap))]
    older = num_own - rows
    new = attend(query, key[:, :, older:], value[:, :, older:], scale=scale, causal=True, softcap=softcap)
    if not older:
        return [partial(*new)]
    old = attend(query, key[:, :, :older], value[:, :, :older], scale=scale, softcap=softcap)
    return [partial(*new), partial(*old)]


def _mask_function(stock: str) -> Callable[..., torch.Tensor | None]:
    def mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
        if any(isinstance(size, SegmentedLength) for size in (*args, *kwargs.values())):
            return None
        own: Callable[..., torch.Tensor | None] = ALL_MASK_ATTENTION_FUNCTIONS[stock]
        return own(*args, **kwargs)

    return mask
