"""The self-test's verdict on models."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaAttention

from promptcache.diagnostics import UnsupportedModel
from promptcache.encode.self_test import check_linking
from promptcache.model.model import Model
from tests.models_survey import tiny_model

pytestmark = pytest.mark.long

SIZES: dict[str, Any] = {
    "vocab_size": 263,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}


class SlotAttention(LlamaAttention):
    """Attention by transformers' interface. Queries behind `reach` slots of the cache have another temperature."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Any,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        reach = getattr(self.config, "reach", None)
        if reach is not None:
            num_before = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
            slots = torch.arange(num_before, num_before + hidden_states.shape[1])[None, :, None]
            hidden_states = torch.where(slots >= reach, 1.1, 1.0).to(hidden_states) * hidden_states
        return super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)


class Reaching(LlamaForCausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.__class__ = SlotAttention


def accept(model: PreTrainedModel) -> None:
    check_linking(Model(model))


def scaled(model: PreTrainedModel) -> PreTrainedModel:
    """Scale weights up, so that wrong positions show."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(3.0)
    return model


@pytest.mark.parametrize("reach", [None, 45])
def test_attention_that_counts_slots_is_refused(reach: int | None) -> None:
    """A model of an unknown class is accepted, unless its attention counts cache slots."""
    model = scaled(Reaching(LlamaConfig(**SIZES, reach=reach)))

    if reach is None:
        accept(model)
    else:
        with pytest.raises(UnsupportedModel, match=r"llama \(Reaching\).*counts cache slots"):
            accept(model)


def test_an_encoder_is_accepted_as_a_decoder_only() -> None:
    """BERT is accepted with causal attention and refused without."""
    encoder = tiny_model("bert")
    encoder.config.is_decoder = False

    accept(tiny_model("bert"))
    with pytest.raises(UnsupportedModel, match=r"bert .*its attention is not causal"):
        accept(type(encoder)(encoder.config))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("model_type", "is_right"), [("llama4_text", False), ("starcoder2", True)])
def test_the_verdict_does_not_depend_on_the_dtype(model_type: str, is_right: bool, dtype: torch.dtype) -> None:
    """Llama 4's temperature counts cache slots, which bfloat16 is too coarse to show: a field of its configuration does."""
    model = tiny_model(model_type).to(dtype)

    if is_right:
        accept(model)
    else:
        with pytest.raises(UnsupportedModel, match=r"llama4_text .*'attn_temperature_tuning'"):
            accept(model)


def test_the_state_of_the_caller_is_left_alone() -> None:
    """The self-test changes no random state, default dtype, weights or mode of the model."""
    model = tiny_model("helium")
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        accept(model)

        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
