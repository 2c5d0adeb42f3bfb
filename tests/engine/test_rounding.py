"""Law 1 in float32 on models whose attention scores are large: the demo model, and SmolLM2-135M-Instruct."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from promptcache import Engine
from promptcache.demo import MODEL_FOLDER
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.model.load import load_model
from promptcache.model.model import Model
from promptcache.model.reference import reference_logits
from promptcache.testing.cached import distance
from promptcache.tokenizer import HubTokenizer
from tests.laws.service import serve
from tests.real_model import FOLDER

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


@pytest.mark.law
def test_cached_logits_are_the_reference_within_the_rounding_of_scores() -> None:
    assert max(map(distance_of, CONTENTS)) < ROUNDING * largest_score()


TRAVEL = """<schema name="travel"><system>You answer in one word.
<module name="france">France lies in Europe. Its capital is Paris. </module>
<module name="japan" context="own">Japan is an island country. Its capital is Tokyo. </module>
<module name="wish">I like <parameter name="what" length="4"/>.</module></system></schema>"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = Engine.from_pretrained(str(FOLDER))
    engine.add_schema(TRAVEL)
    return engine


def real(test: Any) -> Any:
    """Mark a test with SmolLM2-135M-Instruct: `make real-model` makes its folder, and it is skipped without that."""
    for mark in (pytest.mark.real, pytest.mark.long, pytest.mark.skipif(not FOLDER.is_dir(), reason="make real-model")):
        test = mark(test)
    return test


@real
def test_a_real_model_answers(engine: Engine) -> None:
    """The answer to a question about a module contains the fact of the module."""
    prompt = '<prompt schema="travel"><france/><user>What is the capital of France?</user></prompt>'

    assert "Paris" in engine.generate(prompt, max_new_tokens=12, do_sample=False).text


@real
@pytest.mark.parametrize(
    "modules",
    ["<france/>", "<france/><japan/>", '<japan/><wish what="trains"/>', '<france/><japan/><wish what="tea"/>'],
)
def test_cached_logits_of_a_real_model_equal_the_reference(engine: Engine, modules: str) -> None:
    """Law 1 holds within its bound for float32."""
    prompt = f'<prompt schema="travel">{modules}<user>Which capital?</user></prompt>'

    assert distance(engine.logits(prompt), engine.reference(prompt)) < 1e-5
