"""Published model shapes with random weights. Nothing is downloaded, and speed does not depend on the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_QWEN: Mapping[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}
_LLAMA: Mapping[str, Any] = {
    "vocab_size": 128_256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}


def _sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 131_072,
        "bos_token_id": None,
        "eos_token_id": None,
        **more,
    }


SHAPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tiny": ("LlamaConfig", _sizes(64, 128, 2, 4, 2, vocab_size=512)),
    "mha-42m": ("LlamaConfig", _sizes(512, 1376, 8, 8, 8, vocab_size=32_000)),
    "qwen2.5-0.5b": (
        "Qwen2Config",
        _sizes(896, 4864, 24, 14, 2, vocab_size=151_936, tie_word_embeddings=True, **_QWEN),
    ),
    "qwen2.5-1.5b": (
        "Qwen2Config",
        _sizes(1536, 8960, 28, 12, 2, vocab_size=151_936, tie_word_embeddings=True, **_QWEN),
    ),
    "llama-3.2-1b": ("LlamaConfig", _sizes(2048, 8192, 16, 32, 8, tie_word_embeddings=True, head_dim=64, **_LLAMA)),
    "llama-3.2-3b": ("LlamaConfig", _sizes(3072, 8192, 28, 24, 8, tie_word_embeddings=True, head_dim=128, **_LLAMA)),
    "llama-3.1-8b": ("LlamaConfig", _sizes(4096, 14_336, 32, 32, 8, head_dim=128, **_LLAMA)),
}
"""Names that `--shape` takes."""


def random_shape(name: str, dtype: torch.dtype, device: torch.device, *, seed: int = 0) -> PreTrainedModel:
    """Return a model of a published shape with random weights.

    Args:
        name: One of `SHAPES`.
        dtype: Type of weights and KV.
        device: Device of the weights.
        seed: Seed of the weights.
    """
    kind, sizes = SHAPES[name]
    return random_weights(kind, sizes, dtype, device, seed=seed)


def random_weights(
    kind: str, sizes: Mapping[str, Any], dtype: torch.dtype, device: torch.device, *, seed: int = 0
) -> PreTrainedModel:
    """Return a model with random weights from the name of its configuration in transformers, and its sizes."""
    import torch  # the names alone are read for help and completion
    import transformers
    from transformers import AutoModelForCausalLM

    config = getattr(transformers, kind)(**sizes)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        auto: Any = AutoModelForCausalLM  # its methods are not annotated
        model: PreTrainedModel = auto.from_config(config, dtype=dtype).eval()
    return model
