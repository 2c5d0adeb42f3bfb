"""Law 1 for every supported model family, through encoding, linking and generation."""

import time
from dataclasses import replace
from functools import cache

import pytest
import torch

from promptcache.decode import answer
from promptcache.decode.request import Request
from promptcache.diagnostics import UnsupportedModel
from promptcache.encode import encode, linked_logits
from promptcache.encode.self_test import check_linking
from promptcache.language import Placement, Repair, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Level, Origin, Plan
from promptcache.model.model import Model
from promptcache.model.reference import plain_logits, reference_logits
from promptcache.options import Options
from promptcache.planning import serve_schema
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.families import CONTEXT, FAMILIES, REFUSED, WINDOW, random_model, usual_families
from tests.laws.service import serve

SCHEMA = """<schema name="families">You are terse.
<module name="trip" required="true">For <parameter name="days" length="9" placeholder="n days"/> in <parameter name="mood" length="5"/>.</module>
<union name="city"><module name="miami">Miami has beaches and crabs.</module><module name="paris">Paris has soup.</module></union>
<module name="fresh" cache="false">Computed anew.</module>
<module name="one">One tells of two.</module><module name="two" context="own">Two tells of one.</module>
<scaffold modules="one two"/></schema>"""
PROMPT = '<prompt schema="families"><trip days="nine" mood="joy"/><paris/><fresh/><one/><two/>Where to?</prompt>'


def plan_for(
    prompt: str, repair: str = "slots", family: str = "llama", placement: Placement | None = None, source: str = SCHEMA
) -> Plan:
    """Plan a prompt, with closed positions if the family allows them and nothing else is asked."""
    schema = check_schema(parse_schema(source))
    placement = placement or (Placement.FIXED if family == "gpt2" else Placement.CLOSED)
    served = serve_schema(schema, ByteTokenizer(), CONTEXT, placement=placement)
    return served.plan(resolve_prompt(parse_prompt(prompt), schema), Repair.parse(repair))


@cache
def model_of(family: str, dtype: torch.dtype) -> Model:
    model = Model(random_model(family, dtype))
    check_linking(model)
    return model


def cached_logits(plan: Plan, model: Model) -> torch.Tensor:
    return linked_logits(plan, serve(plan.layout.schema, model).executor)


def greedy(model: Model, plan: Plan, num_tokens: int) -> tuple[int, ...]:
    request = Request(
        plan=plan,
        options=Options(),
        max_new_tokens=num_tokens,
        started=time.perf_counter(),
        text=ByteTokenizer().decode,
        token_bytes=ByteTokenizer().token_bytes,
    )
    return answer([request], serve(plan.layout.schema, model).executor)[0].token_ids


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("family", "placement"),
    [*((name, None) for name in FAMILIES), ("llama", Placement.FIXED), ("gpt-oss", Placement.FIXED)],
)
def test_cached_logits_are_the_reference(
    family: str, placement: Placement | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached logits equal the reference within 1e-5 in float32, with an argument, a union, a gap and a scaffold.

    So they do with any repair, and in modules that take several forward passes. With repair "all", they equal those of
    one causal pass over the same tokens and positions.
    """
    model = model_of(family, torch.float32)
    for repair in ("slots", "none", "first-2", "first-50%", "all"):
        plan = plan_for(PROMPT, repair, family, placement)
        found = cached_logits(plan, model)
        assert distance(found, reference_logits(plan.tokens, model)) < 1e-5, repair
    assert (plan.level, plan.num_repaired_tokens > 0) == (Level.EXACT, True)
    assert distance(found, plain_logits(plan.tokens, model)) < 1e-5

    monkeypatch.setattr(encode, "CHUNK_TOKENS", 5)
    plan = plan_for(PROMPT, family=family, placement=placement)
    assert max(part.encoding.num_tokens for part in plan.tokens.parts) > 3 * 5
    assert distance(cached_logits(plan, model), reference_logits(plan.tokens, model)) < 1e-5


@pytest.mark.parametrize("family", usual_families())
def test_wrong_positions_show(family: str) -> None:
    """Moving one argument by one position changes the reference beyond the tolerance, so the law can fail."""
    model = model_of(family, torch.float32)
    plan = plan_for(PROMPT, family=family)
    moved = [replace(each, start=each.start + (each.origin is Origin.ARGUMENT)) for each in plan.pieces]
    other = replace(plan, pieces=tuple(moved))

    assert distance(reference_logits(other.tokens, model), reference_logits(plan.tokens, model)) > 1e-4


def of_reference(model: Model, plan: Plan, num_tokens: int) -> tuple[int, ...]:
    tokens: tuple[int, ...] = ()
    while len(tokens) < num_tokens:
        tokens = (*tokens, int(reference_logits(plan.continued(tokens).tokens, model)[-1].argmax()))
    return tokens


def test_longrope_answers_continue_beyond_the_original_length() -> None:
    """Where own tokens pass the length at which stock longrope changes, the greedy tokens are still the reference's."""
    model = model_of("phi3, longrope (pinned)", torch.float64)
    plan = plan_for(
        '<prompt schema="families"><trip days="nine" mood="joy"/>What can be seen where the river ends?</prompt>'
    )
    num_tokens = model.hf.config.original_max_position_embeddings - plan.num_new_tokens + 12
    assert 12 < num_tokens < 40

    assert greedy(model, plan, num_tokens) == of_reference(model, plan, num_tokens)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_configuration_that_asks_for_tuples_changes_nothing(family: str) -> None:
    """With `return_dict=False` a model has the same KV and answers, and transformers' own `generate` works."""
    expected = model_of(family, torch.float32)
    hf = random_model(family, torch.float32)
    hf.config.return_dict = False
    model = Model(hf)
    check_linking(model)
    plan = plan_for(PROMPT, family=family)

    assert greedy(expected, plan, 3) == greedy(model, plan, 3)
    assert model.fingerprint == expected.fingerprint
    tokens = torch.tensor([[5, 6, 7]])
    assert torch.equal(*(each.hf.generate(tokens, max_new_tokens=3, do_sample=False) for each in (expected, model)))


@pytest.mark.parametrize("family", [name for name in FAMILIES if "pinned" in name])
def test_pinned_frequencies_do_not_depend_on_history(family: str) -> None:
    model = model_of(family, torch.float64)
    plan = plan_for(PROMPT, family=family)
    before = cached_logits(plan, model)

    plain_logits(plan_for(PROMPT.replace("Where to?", "Where to? " * 60)).tokens, model)

    assert distance(cached_logits(plan, model), before) < 1e-12


@pytest.mark.parametrize("family", REFUSED)
def test_foreign_models_are_refused_by_name(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"^{family} \("):
        Model(random_model(family))


def test_windows_reach_into_modules() -> None:
    assert plan_for(PROMPT).stop > 4 * WINDOW
