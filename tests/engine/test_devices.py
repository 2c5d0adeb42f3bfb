"""Requests from end to end on each device: equal answers, and KV in the right tier."""

from typing import Any

import pytest
import torch

from promptcache.decode import KVSource
from promptcache.engine import Engine
from promptcache.kv import StoreConfig, Tier
from promptcache.model.model import Model
from promptcache.testing.cached import distance
from tests.devices import DEVICES
from tests.engine.asking import engine_of
from tests.families import random_model
from tests.model.test_families import PROMPT, SCHEMA
from tests.rows.test_interleavings import largest_distance_of_steps, usual_plans

TOLERANCE = {  # RMSNorm rounds float64 to float32
    torch.float64: 1e-6,
    torch.float32: 1e-5,
    torch.bfloat16: 0.4,
    torch.float16: 0.05,
}
DTYPES = [
    *(torch.float64, torch.bfloat16),
    *(
        pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.float32, torch.float16)
    ),  # `make test-gpu` has them
]
ROOM = 2**30
GREEDY: dict[str, Any] = {"do_sample": False}


def model_on(device: str, family: str = "llama", dtype: torch.dtype = torch.float64) -> Model:
    return Model(random_model(family, dtype).to(device))


def engine_on(device: str, family: str = "llama", store: StoreConfig | None = None) -> Engine:
    return engine_of(model_on(device, family), schema=SCHEMA, store=store)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss"])
def test_steps_of_many_requests_are_the_reference_on_each_device(device: str, dtype: torch.dtype, family: str) -> None:
    """With windows, soft caps, sinks and grouped heads, requests get the logits of the reference on the same device."""
    assert largest_distance_of_steps(model_on(device, family, dtype), usual_plans(family)) < TOLERANCE[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss"])
def test_answers_do_not_depend_on_the_device(device: str, family: str) -> None:
    """Requests get the tokens, logits and scores that they get on a CPU, alone and in one forward pass."""
    engine, on_cpu = engine_on(device, family), engine_on("cpu", family)
    prompts = [
        PROMPT,
        '<prompt schema="families"><trip days="one" mood="sad"/><miami/>When does the ferry leave?</prompt>',
    ]

    batch = engine.generate_batch(prompts, max_new_tokens=8, **GREEDY)
    for prompt, answer in zip(prompts, batch, strict=True):
        logits = engine.logits(prompt)
        alone, expected = (each.generate(prompt, max_new_tokens=8, **GREEDY) for each in (engine, on_cpu))
        assert answer.token_ids == alone.token_ids == expected.token_ids
        assert logits.device.type == device
        assert distance(logits, engine.reference(prompt)) < TOLERANCE[torch.float64]
    found, expected_scores = (each.score(PROMPT, [" yes", "no"]) for each in (engine, on_cpu))
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in expected_scores], abs=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_bytes", [1, ROOM])
def test_kv_in_host_memory_serves_the_device(device: str, memory_bytes: int) -> None:
    """KV in host memory is found there, and copied to the device once if that has room; all answers are the same."""
    engine = engine_on(device, store=StoreConfig(memory_bytes=memory_bytes, host_bytes=ROOM))
    first = engine.generate(PROMPT, max_new_tokens=8, **GREEDY)
    engine.store.memory.clear()

    loaded, found = (engine.generate(PROMPT, max_new_tokens=8, **GREEDY) for _ in range(2))

    assert {each.tier for each in first.usage.modules} == {None}
    assert {each.tier for each in loaded.usage.modules if each.source is not KVSource.HISTORY} == {Tier.HOST}
    assert {each.tier for each in found.usage.modules} == {Tier.HOST if memory_bytes == 1 else Tier.MEMORY}
    expected = engine_on("cpu").generate(PROMPT, max_new_tokens=8, **GREEDY)
    assert first.token_ids == loaded.token_ids == found.token_ids == expected.token_ids
