"""A survey of the causal language models of transformers: each type, tiny and random, is right or refused by name.

Run by tests/test_models_survey.py; `python -m tests.models_page` writes its results to docs/models.md.
"""

import copy
import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from promptcache import Engine
from promptcache.diagnostics import UnsupportedModel, first_line
from promptcache.model import used_tokens
from promptcache.model.facts import MODEL_FAULTS
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cached import distance
from tests.families import FAMILIES

_TESTED = {getattr(transformers, name).model_type for name, _ in FAMILIES.values()}
TYPES = tuple(name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in _TESTED)
"""Every type that transformers has a causal language model for, without those of tests/families.py."""

SAMPLE = (
    *("bert", "codegen", "deepseek_v3", "falcon", "gpt_neo", "jetmoe", "llama4_text"),
    *("moshi", "olmo3", "opt", "roberta"),
)
"""One type of each kind, for the suite of every change."""

WINDOW = 12
TOLERANCE = 1e-5
_MAX_WEIGHTS = 30_000_000

_SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "n_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 1024),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("sliding_window", "window_size", "attention_window"), WINDOW),
    "vocab_size": ByteTokenizer().vocab_size,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "is_decoder": True,
}
_LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
}
_TEXT: Mapping[str, Any] = {
    name: _SIZES[name]
    for name in (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "sliding_window"),
    )
}
_FULL: Mapping[str, Any] = {"layer_types": ["full_attention"] * 4}
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"), _LATENT),
    "axk2": {**_LATENT, "num_experts_per_tok": 2},
    "codegen": {"rotary_dim": 8},
    "dots1": {"n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    "gemma3": {
        "text_config": {**_TEXT, "layer_types": ["sliding_attention", "full_attention"] * 2},
        "vision_config": {**_TEXT, "image_size": 32, "patch_size": 16},
        "mm_tokens_per_image": 4,
        **{f"{name}_token_index": 250 + at for at, name in enumerate(("boi", "eoi", "image"))},
    },
    "gemma3n_text": {"vocab_size_per_layer_input": 263, "num_kv_shared_layers": 0, **_FULL},
    "gemma4_text": {"vocab_size_per_layer_input": 263, "hidden_size_per_layer_input": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "llama4_text": {**_FULL, "floor_scale": 16, "no_rope_layers": [1, 0, 1, 0]},
    "longcat_flash": {**_LATENT, "head_dim": 16, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 96},
    "xmod": {"default_language": "en_XX"},
}
"""What the common sizes leave inconsistent, and what makes a type use the mechanism that it is listed for."""


class Outcome(StrEnum):
    """The result of the survey for a model type."""

    RIGHT = "right"
    WRONG = "wrong"
    REFUSED = "refused"
    NOT_BUILT = "not built"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding of the survey for one type."""

    model_type: str
    outcome: Outcome
    reference: float = 0.0  # max|a-b| / max|b| between logits and the engine's reference
    own: float = 0.0  # the same between logits and the plain forward of an untouched copy of the model
    reason: str = ""  # why the type was refused, or could not be built


def survey(model_type: str) -> Finding:
    """Build a tiny random model of a type, and compare its cached logits with the reference and with its own."""
    try:
        model = tiny_model(model_type)
    except (*MODEL_FAULTS, NotBuilt) as error:
        return Finding(model_type=model_type, outcome=Outcome.NOT_BUILT, reason=first_line(error))
    untouched = copy.deepcopy(model)
    try:
        engine = Engine(model, ByteTokenizer())
    except UnsupportedModel as refusal:
        has_run = "its own forward pass fails" not in str(refusal)
        outcome = Outcome.REFUSED if has_run else Outcome.NOT_BUILT
        return Finding(model_type=model_type, outcome=outcome, reason=str(refusal))
    engine.add_schema(_GAPS)
    engine.add_schema(_CHAIN)
    reference = distance(engine.logits(_GAPS_PROMPT), engine.reference(_GAPS_PROMPT))
    prompts = [_CHAIN_PROMPT] if engine.model.facts.window is not None else [_CHAIN_PROMPT, _HOLE_PROMPT]
    own = max(distance(engine.logits(prompt), _own_logits(engine, prompt, untouched)) for prompt in prompts)
    is_right = max(reference, own) < TOLERANCE
    return Finding(
        model_type=model_type, outcome=Outcome.RIGHT if is_right else Outcome.WRONG, reference=reference, own=own
    )


class NotBuilt(Exception):
    """A type of which this file makes no tiny model."""


def tiny_model(model_type: str) -> PreTrainedModel:
    """Return a tiny random model with scaled-up weights: with the usual small ones wrong positions would not show."""
    kind = CONFIG_MAPPING[model_type]
    fields = {*inspect.signature(kind.__init__).parameters, *getattr(kind, "attribute_map", {})}
    sizes = {name: value for name, value in _SIZES.items() if name in fields}
    config = kind(**{**sizes, **_CHANGES.get(model_type, {})})
    with torch.device("meta"):
        num_weights = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    if num_weights > _MAX_WEIGHTS:
        raise NotBuilt(f"the tiny configuration still has {num_weights / 1e6:.0f} million weights")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(3.0)
    return model


@torch.no_grad()
def _own_logits(engine: Engine, prompt: str, untouched: PreTrainedModel) -> torch.Tensor:
    """Return the logits of a prompt's new tokens by a plain forward over its whole text; without a gap, over IDs alone."""
    plan = engine.plan(prompt)
    tokens = used_tokens(plan.tokens)
    positions = [each.position for each in tokens]
    inputs = {"input_ids": torch.tensor([[each.token_id for each in tokens]])}
    if positions != list(range(len(positions))):
        inputs |= {"position_ids": torch.tensor([positions]), "attention_mask": torch.ones_like(inputs["input_ids"])}
    return untouched(**inputs).logits[0, -plan.num_new_tokens :]


_letters = random.Random(3)


def _text(length: int) -> str:
    return "".join(_letters.choice("abcdefghijklmnop") for _ in range(length))


_GAPS = f"""<schema name="gaps">{_text(30)}
<module name="a" required="true">{_text(20)}<parameter name="x" length="9" placeholder="n days"/>{_text(20)}<parameter name="y" length="5"/>{_text(9)}</module>
<module name="absent">{_text(40)}</module>
<union name="u"><module name="u1">{_text(40)}</module><module name="u2">{_text(20)}</module></union>
<module name="b" context="own">{_text(30)}</module></schema>"""
_GAPS_PROMPT = f'<prompt schema="gaps"><a x="nine" y="joy"/><u2/><b/>{_text(20)}</prompt>'
_CHAIN = f"""<schema name="chain">{_text(40)}<module name="a" required="true">{_text(30)}</module><module name="b" required="true">{_text(30)}</module>
<module name="hole">{_text(25)}</module></schema>"""
_CHAIN_PROMPT = f'<prompt schema="chain"><a/><b/><hole/>{_text(20)}</prompt>'
_HOLE_PROMPT = f'<prompt schema="chain"><a/><b/>{_text(20)}</prompt>'
