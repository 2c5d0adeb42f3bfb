"""Attention backends and cache layers from outside the library answer requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from promptcache.attention import register_backend, unregister_backend
from promptcache.engine import Engine
from promptcache.model.model import Model
from promptcache.model.reference import reference_logits
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cached import distance
from promptcache.testing.tiny_model import tiny_model
from tests.attention.dense import DenseBackend
from tests.families import random_model
from tests.model.test_families import PROMPT, SCHEMA, cached_logits, plan_for

GREEDY: dict[str, Any] = {"do_sample": False}


@pytest.fixture
def backend() -> Iterator[DenseBackend]:
    """A toy backend, registered for one test."""
    made = DenseBackend()
    register_backend(made)
    yield made
    unregister_backend(made.name)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss"])
def test_a_toy_backend_computes_cached_logits(family: str, backend: DenseBackend) -> None:
    """With a toy backend, cached logits equal the reference, windows, soft caps and sinks included."""
    model = Model(random_model(family, torch.float64))
    plan = plan_for(PROMPT)

    cached = cached_logits(plan, model)

    assert distance(cached, reference_logits(plan.tokens, model)) < 1e-6  # RMSNorm rounds to float32
    assert backend.calls.count("run 0") == backend.calls.count("run 1") > 0


def test_a_toy_backend_answers_a_request(backend: DenseBackend) -> None:
    """Requests and batches answer the same with and without the toy backend."""
    engine = Engine(tiny_model(), ByteTokenizer())
    engine.add_schema(SCHEMA)
    prompts = [PROMPT, '<prompt schema="families"><trip days="one" mood="sad"/><miami/>When?</prompt>']

    logits = engine.logits(PROMPT)
    calls = tuple(backend.calls)
    batch = engine.generate_batch(prompts, max_new_tokens=6, **GREEDY)
    unregister_backend(backend.name)
    expected = [engine.generate(prompt, max_new_tokens=6, **GREEDY) for prompt in prompts]

    assert distance(logits, engine.logits(PROMPT)) < 1e-10
    assert [each.token_ids for each in batch] == [each.token_ids for each in expected]
    assert "run 0" in calls
