"""Law 1 in float32 on the demo model, whose attention scores are large, with float64 as the measure of rounding."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from promptcache.attention import register_backend, unregister_backend
from promptcache.demo import MODEL_FOLDER
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.model.load import load_model
from promptcache.model.model import Model
from promptcache.model.reference import reference_logits
from promptcache.testing.cached import distance
from promptcache.tokenizer import HubTokenizer
from tests.attention.dense import DenseBackend
from tests.laws.service import serve

pytestmark = pytest.mark.law

ROUNDING = 2**-22
"""Bound on the distance between two float32 computations, for each unit of the largest attention score."""

SCHEMA = """<schema name="facts"><module name="code">The code of Ada Lovelace is 4711. </module>
<module name="house">The colour of the house of Mr. Brown is green. </module>
<module name="city" context="own">Ada lives in Paris and likes cheese. </module></schema>"""
CONTENTS = [
    "Who are you?",
    "<house/>",
    "<city/>?",
    "<code/><house/>?",
    "<code/><city/>What is the code of Ada?",
    "<code/><house/><city/>Write about the sea.",
]


def logits(content: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return cached logits and the reference in float32, and the reference in float64."""
    schema = check_schema(parse_schema(SCHEMA))
    service = serve(schema, demo(), HubTokenizer.from_folder(MODEL_FOLDER))
    selection = resolve_prompt(parse_prompt(f'<prompt schema="facts">{content}</prompt>'), schema)
    plan = service.plan(selection)
    return (
        service.logits(selection),
        reference_logits(plan.tokens, demo()),
        reference_logits(plan.tokens, demo_in_float64()),
    )


@cache
def demo() -> Model:
    """The demo model in float32 as engines load it: its linear layers are packed."""
    return load_model("demo", device="cpu", dtype="float32")[0]


@cache
def demo_in_float64() -> Model:
    """The demo model in float64."""
    return Model(AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float64))


@cache
def largest_score() -> float:
    """The largest attention score of the demo model over a text of 200 tokens, in float64."""
    found: list[float] = []

    def measure(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **kwargs: Any) -> Any:
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        found.append(float((query @ keys.transpose(-1, -2) * scaling).tril().abs().max()))
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, scaling=scaling, **kwargs)

    AttentionInterface.register("measured", measure)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float64, attn_implementation="measured")
    with torch.no_grad():
        model(torch.arange(200)[None])
    return max(found)


def test_float32_differs_from_float64_by_the_rounding_of_scores() -> None:
    """All agree within the rounding of the largest attention score, and cached logits are as accurate as the reference."""
    found = [logits(content) for content in CONTENTS]
    of_cached, of_reference, between = (
        max(distance(each[one], each[other]) for each in found) for one, other in ((0, 2), (1, 2), (0, 1))
    )

    assert max(of_cached, of_reference, between) < ROUNDING * largest_score()
    assert of_cached < 1.5 * of_reference


def test_only_attention_scores_exceed_the_common_bound() -> None:
    """With attention in float64 and the rest in float32, cached logits are within 1e-5 of float64."""
    backend = DenseBackend()
    register_backend(backend)
    try:
        found = [logits(content) for content in CONTENTS]
    finally:
        unregister_backend(backend.name)

    assert backend.calls
    assert max(distance(cached, exact) for cached, _, exact in found) < 1e-5
