"""Keys move to other positions as if the model had computed them there, in every family but those that cannot."""

import pytest
import torch
from hypothesis import given, settings
from transformers import AutoModelForCausalLM, HunYuanDenseV1Config, Ministral3Config, Ministral3ForCausalLM

from promptcache.diagnostics import UnsupportedModel
from promptcache.model import relocation
from promptcache.model.model import Model
from tests.conftest import law_examples, some_of
from tests.families import FAMILIES, random_model, usual_families
from tests.model.relocation_law import FAR, MOVING, Text, distance, encoded, far_model, moved_keys_are_the_models, texts

HALF_TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""About one unit of rounding: a key is rounded where it is encoded, and again when it is moved."""

DOUBLE_TOLERANCE = 2e-7
"""Some families normalize in float32; the others reach 1e-15."""


@pytest.mark.law
@pytest.mark.parametrize("family", some_of(MOVING, 3))
def test_moved_keys_are_the_models(family: str) -> None:
    model = far_model(family)

    @settings(max_examples=law_examples(0.4))
    @given(text=texts())
    def run(text: Text) -> None:
        moved_keys_are_the_models(model, text)

    run()


@pytest.mark.parametrize("dtype", [torch.float64, *HALF_TOLERANCE])
@pytest.mark.parametrize("family", usual_families(MOVING))
def test_other_dtypes_round_once(family: str, dtype: torch.dtype) -> None:
    """Keys of tokens without context are those of the model, but for rounding of its dtype."""
    model = far_model(family, dtype)
    generator = torch.Generator().manual_seed(0)
    token_ids, start, stop = (torch.randint(3, high, (24,), generator=generator) for high in (256, FAR, FAR))
    keys, expected = (encoded(model, token_ids[:, None], each[:, None]) for each in (start, stop))

    moved = model.relocation.move(keys, start, stop)

    assert moved.dtype is dtype
    if family == "gpt-oss" and dtype in HALF_TOLERANCE:  # its sinks let the rounding of scores reach later layers
        moved, expected = moved[:1], expected[:1]
    assert max(map(distance, moved, expected)) <= HALF_TOLERANCE.get(dtype, DOUBLE_TOLERANCE)


def test_learned_positions_are_refused_by_name() -> None:
    """GPT-2 adds positions to its hidden states, so its keys cannot be moved; it says so each time."""
    model = Model(random_model("gpt2"))

    assert not model.can_relocate
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match=r"gpt2 \(GPT2LMHeadModel\) .*learned position embeddings"):
            _ = model.relocation


def test_keys_without_an_explanation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(random_model("llama"))
    monkeypatch.setattr(relocation, "_all_angles", lambda hf: iter(()))

    with pytest.raises(UnsupportedModel, match=r"llama .*explains the keys of layer 0"):
        _ = model.relocation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_scaled_queries_are_refused(beta: float, dtype: torch.dtype) -> None:
    """Ministral 3 scales queries beyond its original context, by less than bfloat16 shows in values."""
    rope = {"llama_4_scaling_beta": beta, "original_max_position_embeddings": 64}
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    config = Ministral3Config(
        **sizes,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, **rope},
    )
    hf = Ministral3ForCausalLM(config)
    with torch.no_grad():
        for weight in hf.parameters():
            weight.mul_(3.0 if weight.ndim > 1 else 1.0)
    model = Model(hf.to(dtype))

    assert model.can_relocate is (beta == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_that_are_scaled_after_rotation_are_refused(dtype: torch.dtype) -> None:
    """HunYuan normalizes keys after their rotation. If the weights of that differ, no rotation moves the keys."""
    hf = AutoModelForCausalLM.from_config(
        HunYuanDenseV1Config(
            vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=1024,
        )
    )  # fmt: skip
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            if "key_layernorm" in name:
                weight.copy_(torch.linspace(0.9, 1.1, 16))

    assert not Model(hf.to(dtype)).can_relocate


@pytest.mark.parametrize("family", ["gemma3, text", "cohere2", "gpt-oss"])
def test_chunks_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = far_model(family, torch.bfloat16)
    keys = torch.randn(model.shape.num_layers, 2, 300, 16).bfloat16()
    start, stop = torch.arange(300), torch.arange(300).flip(0) + 77
    whole = model.relocation.move(keys, start, stop)

    for size in (1, 1000, 1 << 14):
        monkeypatch.setattr(relocation, "_CPU_CHUNK", size)
        assert torch.equal(model.relocation.move(keys, start, stop), whole)
    assert model.relocation.move(keys[:, :, :0], start[:0], stop[:0]).shape == (4, 2, 0, 16)


def test_every_family_moves_but_gpt2() -> None:
    assert {family for family in FAMILIES if Model(random_model(family)).can_relocate} == {*MOVING}


@pytest.mark.parametrize("context_length", [1, 2, 3, 20])
def test_short_contexts_are_enough(context_length: int) -> None:
    assert Model(random_model("llama"), context_length=context_length).can_relocate
