"""Pins RoPE variants whose frequencies depend on the length of the input to one length.

With dynamic NTK and longrope scaling the stock frequencies depend on the input, so the KV of a module would depend on
its neighbours and on earlier calls (transformers 5.23, `modeling_rope_utils.dynamic_rope_update`).
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from transformers import GenerationMixin
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from promptcache.diagnostics import UnsupportedModel

_PINNED = "pinned"


def pin_rope(model: Any, context_length: int) -> str:
    """Fix the length-dependent rotary frequencies of `model` at those for `context_length` positions, in place.

    Returns:
        The regime, for the fingerprint; "" if no frequency depends on the length.
    """
    regimes = {_pin(module, context_length) for module in model.modules() if hasattr(module, "rope_type")}
    regime = "; ".join(sorted(regime for regime in regimes if regime))
    if regime:  # `generate` does not drop the cache where the stock frequencies would change, as it does for Phi-3
        model.prepare_inputs_for_generation = MethodType(GenerationMixin.prepare_inputs_for_generation, model)
    return regime


def _pin(rotary: Any, context_length: int) -> str:
    if (pinned := getattr(rotary, "_promptcache_pinned", None)) is not None:
        return _pinned_regime(pinned, context_length)
    kinds = rotary.rope_type
    if isinstance(kinds, dict):
        if any(_depends_on_length(kind) for kind in kinds.values()):
            raise UnsupportedModel(
                f"{type(rotary).__name__} scales RoPE by length in some layers only ({kinds}): not supported"
            )
        return ""
    if not _depends_on_length(kinds):
        return ""
    device = rotary.inv_freq.device
    frequencies, scaling = ROPE_INIT_FUNCTIONS[kinds](rotary.config, device, seq_len=context_length)
    rotary.register_buffer("inv_freq", frequencies, persistent=False)
    rotary.attention_scaling = scaling
    rotary.rope_type = _PINNED
    rotary._promptcache_pinned = (kinds, context_length)
    return _pinned_regime((kinds, context_length), context_length)


def _pinned_regime(pinned: tuple[str, int], context_length: int) -> str:
    kind, length = pinned
    if length != context_length:
        raise UnsupportedModel(
            f"the model's {kind} RoPE is pinned at {length} positions by another engine; load the model again to use "
            f"{context_length}"
        )
    return f"{kind} rope pinned at {length}"


def _depends_on_length(kind: str) -> bool:
    return "dynamic" in kind or kind == "longrope"
