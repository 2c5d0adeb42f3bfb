"""A tiny random model for tests. It needs no download, and wrong positions change its logits.

It is a two-layer grouped-query Llama over the byte tokenizer's vocabulary. Its weights are scaled up: with the usual
small weights attention is nearly uniform, and a token at a wrong position changes nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from promptcache.model import Model
from promptcache.testing.byte_tokenizer import ByteTokenizer

CONTEXT_LENGTH = 4096
_SCALE = 3.0


def tiny_model(dtype: torch.dtype = torch.float64, *, seed: int = 0) -> Model:
    """Return a fresh random model; the same seed gives the same weights.

    Args:
        dtype: In float64, rounding is far smaller than any fault.
        seed: Of the weights; torch's own random state is left alone.
    """
    config = LlamaConfig(
        vocab_size=ByteTokenizer().vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)  # transformers annotates `to` otherwise than torch
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(_SCALE)
    model.model.rotary_emb = _ExactRotary(model.config)
    for module in list(model.modules()):
        for name, norm in module.named_children():
            if isinstance(norm, LlamaRMSNorm):
                exact = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
                exact.weight = norm.weight
                setattr(module, name, exact)
    return Model(model.to(dtype))


class _ExactRotary(LlamaRotaryEmbedding):
    """Computes the angles of positions in the dtype of the states, as the model normalizes them.

    transformers rounds both to float32 first (5.23, `LlamaRMSNorm` and `LlamaRotaryEmbedding`). In a float64 model that
    hides all differences below 6e-8. On rare prompts it turns ordinary rounding into a difference of that size. Angles
    that are rounded also make attention depend on more than distances.
    """

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()
