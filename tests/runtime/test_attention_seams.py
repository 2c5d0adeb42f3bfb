"""Attention backends and cache layers from outside the library answer requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import Cache

from promptcache.engine import Engine
from promptcache.runtime.attention import AttentionCall, RequestPositions, register_backend, unregister_backend
from promptcache.runtime.hf.hook import AttendingLayer
from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.runtime.link import Linked, request_logits
from promptcache.runtime.reference import reference_logits
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.cached import distance
from promptcache.testing.tiny_model import tiny_model
from tests.families import random_model
from tests.runtime.attention.dense import DenseBackend, dense_attention
from tests.runtime.test_families import PROMPT, SCHEMA, linked, plan_for

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

    cached = request_logits(model, linked(plan, model))

    assert distance(cached, reference_logits(plan.tokens, model)) < 1e-6  # RMSNorm rounds to float32
    assert backend.calls.count("run 0") == backend.calls.count("run 1") > 0


def test_a_toy_backend_answers_a_request(backend: DenseBackend) -> None:
    """Rows need a kernel of steps: they answer the same with and without the toy backend, which computes `logits`."""
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


class ConcatenatingLayer(AttendingLayer):
    """Another kind of cache layer: it concatenates all keys and attends densely by position."""

    is_croppable = False

    def __init__(self, positions: RequestPositions, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # transformers does not annotate it
        self.positions = positions
        views = [segment.layers().by_layer[index] for segment in positions.segments]
        self.keys, self.values = (torch.cat([view[kind] for view in views], dim=2) for kind in range(2))
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: there are keys from the start."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Append own tokens and return all keys and values."""
        self.keys = torch.cat([self.keys, key_states], dim=2)
        self.values = torch.cat([self.values, value_states], dim=2)
        return self.tagged(self.keys), self.values

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Attend to lower positions, and to the token itself."""
        assert call.window is call.softcap is call.sinks is None
        query, keys = call.query, call.keys
        own = self.positions.of_own_tokens(0, keys.shape[2] - self.positions.num_cached)
        placed = np.concatenate([*(segment.position_array() for segment in self.positions.segments), own])
        mask = torch.from_numpy(own[-query.shape[2] :, None] >= placed[None, :])
        out, _ = dense_attention(query, keys, call.values, scale=call.scale, mask=mask)
        return out.transpose(1, 2)

    def get_seq_length(self) -> int:
        """Return the number of all tokens."""
        return self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return a length without a mask."""
        return self.unmasked(self.get_seq_length() + query_length), 0


def test_another_kind_of_layer_answers_a_request() -> None:
    """A cache of foreign layers gives the logits of the reference and the tokens of linked segments."""
    model, plan = tiny_model(), plan_for(PROMPT)
    first, second, segmented = (linked(plan, model) for _ in range(3))

    def relinked(request: Any) -> Any:
        layers = [ConcatenatingLayer(request.positions, index) for index in range(model.shape.num_layers)]
        return replace(request, cache=Cache(layers=layers))

    logits = request_logits(model, relinked(first))
    made, expected = (_generated(model, each) for each in (relinked(second), segmented))

    assert distance(logits, reference_logits(plan.tokens, model)) < 1e-10
    assert made.tolist() == expected.tolist()


def _generated(model: Model, linked: Linked) -> torch.Tensor:
    """Return the new tokens and the answer of a linked request by transformers' `generate`."""
    token_ids, position_ids = (token_tensor(each, model.device) for each in (linked.token_ids, linked.position_ids))
    num_held = linked.cache.get_seq_length()
    mask = torch.ones((1, num_held + token_ids.shape[1]), dtype=torch.long)
    made: torch.Tensor = model.hf.generate(
        token_ids,
        position_ids=position_ids,
        attention_mask=mask,
        past_key_values=linked.cache,
        max_new_tokens=8,
        eos_token_id=None,
        **GREEDY,
    )
    return made
