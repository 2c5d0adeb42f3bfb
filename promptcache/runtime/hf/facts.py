"""What a model and its configuration say, and which models are refused.

Comes in: what may be a model, or a transformers configuration. Goes out: plain facts, or `UnsupportedModel` by name and
with the reason. Nothing is run.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from promptcache.diagnostics import UnsupportedModel
from promptcache.tokenizer import LENGTH_NAMES

TESTED_TYPES = frozenset(
    {
        "cohere2",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "gpt_oss",
        "gptj",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
    }
)
"""Model types of transformers that the tests of this library run on; docs/models.md lists them."""

MODEL_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SafetensorError,
    StrictDataclassError,
    TypeError,
    UnpicklingError,
    ValueError,
)
"""What the code of a model, or of its configuration or weights, raises when it cannot be built or run."""

_SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}
_STATE_SPACE_NAMES = (
    "ssm_cfg",
    "mamba_d_state",
    "state_size",
    "conv_kernel",
    "rwkv",
    "attn_layer_indices",
    "layers_block_type",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What linking needs to know of a model.

    Attributes:
        name: Model type and class, for messages.
        windows: For each layer the sliding window in positions, or None for full attention.
        max_positions: Positions that the model has, or None where the configuration does not say.
        learned_positions: Whether positions beyond `max_positions` do not exist at all.
        softcap: Whether attention scores are capped; the stock SDPA of transformers 5.4 ignores that silently.
    """

    name: str
    windows: tuple[int | None, ...]
    max_positions: int | None
    learned_positions: bool
    softcap: bool

    @property
    def window(self) -> int | None:
        """The sliding window that some layers have, or None where every layer sees everything."""
        return next((window for window in self.windows if window is not None), None)


def first_line(error: Exception) -> str:
    """Return the first line of what an exception says, or its type where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def check_kind(hf: object) -> None:
    """Refuse what is no model of transformers that generates.

    Raises:
        UnsupportedModel: Says what it is, and what to load instead.
    """
    if not isinstance(hf, PreTrainedModel):
        raise UnsupportedModel(
            f"an engine takes a loaded model of transformers, not {type(hf).__name__}; Engine.from_pretrained() loads "
            "one by its name or folder"
        )
    if not hf.can_generate():
        raise UnsupportedModel(f"{type(hf).__name__} does not generate text; load it with AutoModelForCausalLM")


def check_weights(hf: PreTrainedModel) -> None:
    """Refuse a model some of whose weights have no values.

    Raises:
        UnsupportedModel: Says how many.
    """
    weights = [*hf.parameters(), *hf.buffers()]
    num_empty = sum(weight.is_meta for weight in weights)
    if num_empty:
        raise UnsupportedModel(
            f"{type(hf).__name__}: {num_empty} of {len(weights)} weights and buffers are on the meta device, without "
            "values; load the model with from_pretrained(), whole, on one device"
        )


def is_tested(hf: PreTrainedModel) -> bool:
    """Whether `hf` is of a tested type, and of transformers' own class for it."""
    kind = type(hf)
    own_class = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(hf.config.model_type)
    is_own = kind.__module__.startswith("transformers.") and kind.__name__ == own_class
    return is_own and hf.config.model_type in TESTED_TYPES


def check_positions(hf: PreTrainedModel, name: str) -> None:
    """Refuse models in which a token's position is its place in the cache, whatever position it is given.

    Raises:
        UnsupportedModel: Names the model.
    """
    text: Any = hf.config.get_text_config(decoder=True)
    if "position_ids" not in inspect.signature(type(hf).forward).parameters or getattr(text, "alibi", False):
        raise UnsupportedModel(
            f"{name} counts positions by place in the cache, as ALiBi does; modules with gaps between them would be "
            "misplaced"
        )


def read_facts(config: PretrainedConfig, class_name: str) -> Facts:
    """Return what `config` says of the model.

    Raises:
        UnsupportedModel: Not a causal decoder with plain key-value caches.
    """
    name = f"{config.model_type} ({class_name})"
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} is an encoder-decoder model; only causal decoders can be cached by modules")
    text: Any = config.get_text_config(decoder=True)
    layer_types = _layer_types(text)
    for field in _STATE_SPACE_NAMES:
        if getattr(text, field, None) and "attention" not in field:
            raise UnsupportedModel(
                f"{name} keeps a recurrent state (configuration field '{field}'); it cannot be linked by modules"
            )
    if foreign := sorted(set(layer_types) - _SUPPORTED_LAYERS):
        raise UnsupportedModel(
            f"{name} has layers of type {', '.join(foreign)}; only full and sliding-window attention can be linked"
        )
    window = getattr(text, "sliding_window", None)
    return Facts(
        name=name,
        windows=tuple(window if kind == "sliding_attention" else None for kind in layer_types),
        max_positions=next((getattr(text, field) for field in LENGTH_NAMES if getattr(text, field, None)), None),
        learned_positions=not has_rotary(text),
        softcap=getattr(text, "attn_logit_softcapping", None) is not None,
    )


def has_rotary(text: Any) -> bool:
    """Return whether positions enter by rotation of queries and keys, so that any position exists."""
    fields = ("rope_parameters", "rope_theta", "rope_scaling", "rotary_dim", "rotary_pct", "rotary_emb_base", "rotary")
    return any(getattr(text, field, None) for field in fields)


def _layer_types(text: Any) -> list[str]:
    declared = getattr(text, "layer_types", None)
    if declared is not None:
        return list(declared)
    kind = "full_attention" if getattr(text, "sliding_window", None) is None else "sliding_attention"
    if getattr(text, "attention_chunk_size", None) is not None:
        kind = "chunked_attention"
    if (named := getattr(text, "attention_layers", None)) is not None:  # GPT-Neo
        return [kind if each == "global" else str(each) for each in named]
    return [kind] * text.num_hidden_layers
