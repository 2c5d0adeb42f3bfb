"""Law 1 in float32 on the demo model, whose attention scores are large."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from promptcache.demo import MODEL_FOLDER
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.model.load import load_model
from promptcache.model.model import Model
from promptcache.model.reference import reference_logits
from promptcache.testing.cached import distance
from promptcache.tokenizer import HubTokenizer
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


def distance_of(content: str) -> float:
    """Return the distance between cached logits and the reference."""
    schema = check_schema(parse_schema(SCHEMA))
    service = serve(schema, demo(), HubTokenizer.from_folder(MODEL_FOLDER))
    selection = resolve_prompt(parse_prompt(f'<prompt schema="facts">{content}</prompt>'), schema)
    return distance(service.logits(selection), reference_logits(service.plan(selection).tokens, demo()))


@cache
def demo() -> Model:
    """The demo model in float32 as engines load it: its linear layers are packed."""
    model = Model(load_model("demo", device="cpu", dtype="float32")[0])
    model.pack_weights(None)
    return model


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


def test_cached_logits_are_the_reference_within_the_rounding_of_scores() -> None:
    """The distance is bounded by the largest attention score."""
    assert max(map(distance_of, CONTENTS)) < ROUNDING * largest_score()
