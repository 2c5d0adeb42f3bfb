"""Facts about a model, read from its class and configuration, and the models that are refused.

No model is run here. A refused model raises `UnsupportedModel` with its name and the reason.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PretrainedConfig, PreTrainedModel

from promptcache.diagnostics import UnsupportedModel
from promptcache.model.fingerprint import plain_tensors
from promptcache.tokenizer import LENGTH_NAMES

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
"""Exceptions that the code of a model, its configuration or its weights raises when it cannot be built or run."""

COMPILED = (
    "{} is compiled by torch.compile, which cannot trace attention to stored KV: pass and call the model that was not "
    "compiled. Decoding with stored KV gains nothing by it"
)

NO_INTERFACE = (
    "does not call transformers' attention interface (ALL_ATTENTION_FUNCTIONS) in every layer, so its attention cannot "
    "read stored KV"
)

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
_ROTARY = ("rope_parameters", "rope_theta", "rope_scaling", "rotary_dim", "rotary_pct", "rotary_emb_base", "rotary")

EIGHT_BITS = (
    "with activations in 8 bits, logits depend on the tokens that are computed together: quantize its weights only, or "
    "load it without quantization"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a model that linking needs.

    Attributes:
        name: Model type and class, for messages.
        windows: For each layer the sliding window in positions, or None for full attention.
        max_positions: Number of positions, or None if the configuration does not say.
        learned_positions: Whether there are no positions beyond `max_positions`.
        softcap: Whether attention scores are capped. SDPA of transformers 5.4 ignores a cap silently.
    """

    name: str
    windows: tuple[int | None, ...]
    max_positions: int | None
    learned_positions: bool
    softcap: bool

    @property
    def window(self) -> int | None:
        """The sliding window of some layers, or None if every layer has full attention."""
        return next((window for window in self.windows if window is not None), None)


def check_causal(config: PretrainedConfig, name: str) -> None:
    """Refuse an encoder-decoder model.

    Raises:
        UnsupportedModel: Names the model.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{name} is an encoder-decoder model; only causal decoders can be cached by modules")


def check_loaded(hf: object) -> None:
    """Refuse an object that is not a generating model of transformers with dense weights that can be read.

    Layers of `torch.ao.nn.quantized` are refused as well: they quantize activations with one scale for all tokens.

    Raises:
        UnsupportedModel: Names the type and the way to load a model, or the weight.
    """
    name = type(hf).__name__
    if not isinstance(hf, PreTrainedModel):
        fix = "Engine.from_pretrained() loads one by its name or folder"
        for place, part in hf.named_modules() if isinstance(hf, torch.nn.Module) else ():
            if isinstance(part, PreTrainedModel):
                fix = (
                    f"pass the {type(part).__name__} inside of it, model.{place}. It has the adapters in its layers, "
                    "and not what the wrapper itself adds, such as virtual tokens or compiled code"
                )
                break
        raise UnsupportedModel(f"an engine takes a loaded model of transformers, not {name}; {fix}")
    if not hf.can_generate():
        raise UnsupportedModel(f"{name} does not generate text; load it with AutoModelForCausalLM")
    if hf.generation_config is None:
        raise UnsupportedModel(f"{name} has no generation configuration; set it to GenerationConfig()")
    for place, part in hf.named_modules():
        if type(part).__module__.startswith("torch.ao.nn.quantized"):
            raise UnsupportedModel(f"{name}: '{place}' is quantized by torch.ao, and {EIGHT_BITS}")
    weights = dict((*hf.named_parameters(), *hf.named_buffers()))
    for place, weight in weights.items():
        if weight.layout is not torch.strided:
            raise UnsupportedModel(
                f"{name}: the weight '{place}' is sparse ({weight.layout}); make it dense with to_dense()"
            )
        if any(part.data_ptr() == 0 and part.numel() and not part.is_meta for part in plain_tensors(weight)):
            raise UnsupportedModel(
                f"{name}: the values of the weight '{place}' cannot be read, because {type(weight).__name__} has no "
                "__tensor_flatten__; load the model without this quantization"
            )
    num_empty = sum(weight.is_meta for weight in weights.values())
    if num_empty:
        raise UnsupportedModel(
            f"{name}: {num_empty} of {len(weights)} weights and buffers are on the meta device, without values; load "
            "the model with from_pretrained(), whole, on one device"
        )


def check_mode(hf: torch.nn.Module) -> None:
    """Refuse a model with a part that is compiled or in training mode.

    Raises:
        UnsupportedModel: Names the part.
    """
    for name, part in hf.named_modules():
        where = f"{type(hf).__name__}{'.' * bool(name)}{name}"
        is_replaced = hasattr(vars(part).get("forward"), "_torchdynamo_orig_callable")
        if is_replaced or hasattr(part, "_orig_mod") or part._compiled_call_impl is not None:
            raise UnsupportedModel(COMPILED.format(where))
        if part.training:
            raise UnsupportedModel(
                f"{where} is in training mode, in which dropout and other layers compute other KV: call model.eval() "
                "before requests"
            )


def is_quantized(hf: PreTrainedModel) -> bool:
    """Whether transformers loaded the model quantized, or weights are subclasses of tensors that hold others."""
    return getattr(hf, "hf_quantizer", None) is not None or any(
        hasattr(each, "__tensor_flatten__") for each in hf.parameters()
    )


def read_facts(hf: PreTrainedModel) -> Facts:
    """Return the facts in the configuration of a model.

    Raises:
        UnsupportedModel: The model is not a causal decoder with plain key-value caches, takes positions from the order
            of its cache, or has layers that do not call the attention interface.
    """
    config: Any = hf.config
    name = f"{config.model_type} ({type(hf).__name__})"
    check_causal(config, name)
    text: Any = config.get_text_config(decoder=True)
    window = getattr(text, "sliding_window", None)
    layer_types = getattr(text, "layer_types", None)
    if layer_types is None:
        is_chunked = getattr(text, "attention_chunk_size", None) is not None
        kind = "chunked_attention" if is_chunked else "full_attention" if window is None else "sliding_attention"
        layer_types = [kind] * text.num_hidden_layers
    for field in _STATE_SPACE_NAMES:
        if getattr(text, field, None):
            raise UnsupportedModel(
                f"{name} keeps a recurrent state (configuration field '{field}'), which cannot be cached by modules"
            )
    if foreign := sorted(set(layer_types) - _SUPPORTED_LAYERS):
        raise UnsupportedModel(
            f"{name} has layers of type {', '.join(foreign)}; only full and sliding-window attention can be linked"
        )
    if getattr(text, "attn_temperature_tuning", False):  # Llama 4; it begins beyond the texts of the self-test
        raise UnsupportedModel(
            f"{name} scales queries by their slots in the cache (configuration field 'attn_temperature_tuning')"
        )
    if "position_ids" not in inspect.signature(type(hf).forward).parameters or getattr(text, "alibi", False):
        raise UnsupportedModel(
            f"{name} takes positions from the order of the cache, as ALiBi does, so gaps between modules would "
            "change its output"
        )
    if not type(hf)._can_set_attn_implementation():
        raise UnsupportedModel(f"{name} {NO_INTERFACE}")
    return Facts(
        name=name,
        windows=tuple(window if kind == "sliding_attention" else None for kind in layer_types),
        max_positions=next((getattr(text, field) for field in LENGTH_NAMES if getattr(text, field, None)), None),
        learned_positions=not any(getattr(text, field, None) for field in _ROTARY),
        softcap=getattr(text, "attn_logit_softcapping", None) is not None,
    )
