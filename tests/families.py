"""Tiny configurations of every model family that we claim, and the random models made from them.

Shapes are small; mechanisms are the published ones: grouped heads, partial rotation, soft caps, sinks, windows, experts, RoPE scaling.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from promptcache.testing.byte_tokenizer import ByteTokenizer

VOCABULARY = ByteTokenizer().vocab_size
WINDOW = 12
CONTEXT = 1024

_BASE: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MIXED: Mapping[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_LONG: Mapping[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0 + 0.5 * index for index in range(8)],
    "original_max_position_embeddings": 64,
}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}

FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama, linear rope": ("LlamaConfig", _rope("linear", factor=4.0)),
    "llama, llama3 rope": ("LlamaConfig", _rope("llama3", **_LLAMA3)),
    "llama, yarn rope": ("LlamaConfig", _rope("yarn", factor=4.0, original_max_position_embeddings=256)),
    "llama, dynamic rope (pinned)": ("LlamaConfig", _rope("dynamic", factor=4.0, original_max_position_embeddings=64)),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_EXPERTS, "num_experts": 4, "head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "mixtral": ("MixtralConfig", {"num_experts_per_tok": 2, "num_local_experts": 4, "sliding_window": WINDOW}),
    "gemma2": ("Gemma2Config", {**_MIXED, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "gemma3, text": ("Gemma3TextConfig", {**_MIXED, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "phi": ("PhiConfig", {}),
    "phi3": ("Phi3Config", {}),
    "phi3, longrope (pinned)": ("Phi3Config", {"rope_parameters": _LONG, "original_max_position_embeddings": 64}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}),
    "olmo2": ("Olmo2Config", {}),
    "smollm3": ("SmolLM3Config", {}),
    "granite": ("GraniteConfig", {}),
    "cohere2": ("Cohere2Config", _MIXED),
    "gpt-oss": ("GptOssConfig", {**_MIXED, "num_experts_per_tok": 2, "num_local_experts": 4, "head_dim": 16}),
    "stablelm": ("StableLmConfig", {}),
}
"""What is claimed: name in docs/models.md -> configuration class and what it adds to the common shape."""

MECHANISMS = frozenset(
    {
        *("llama", "qwen3_moe", "mistral", "gemma2", "gemma3, text", "gpt_neox", "gpt2", "gpt-oss"),
        "phi3, longrope (pinned)",
    }
)
"""Families that together have every mechanism: experts, windows, soft caps, sinks, pinned and partial rotation."""

REFUSED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "mamba": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}),
    "jamba": ("JambaConfig", {"num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False}),
    "gptj": ("GPTJConfig", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT, "rotary_dim": 8}),
    "falcon_h1": ("FalconH1Config", {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}),
}


def usual_families(names: Iterable[str] = FAMILIES) -> list[Any]:
    """Return families as parameters. Those that have no mechanism of their own are for slow runs."""
    return [name if name in MECHANISMS else pytest.param(name, marks=pytest.mark.slow) for name in names]


def random_model(
    family: str, dtype: torch.dtype = torch.float32, *, scale: float = 3.0, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """Return a random model of `family` whose weights are scaled up, so that wrong positions and masks show.

    With the usual small random weights attention is nearly uniform and hides them. `changes` are fields of its
    configuration with other values.
    """
    name, fields = {**FAMILIES, **REFUSED}[family]
    config = getattr(transformers, name)(**{**_BASE, **fields, **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return model.to(dtype).eval()
