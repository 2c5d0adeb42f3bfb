"""Recorded steps, with a stand-in for CUDA graphs and the Triton kernels in the interpreter."""

import gc
import logging
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from promptcache.attention import segment_lists
from promptcache.diagnostics import ModelChanged
from promptcache.engine import Engine
from promptcache.model.model import Model
from promptcache.rows import step_graphs
from promptcache.rows.step_graphs import StepGraphs
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.attention.triton_interpreter import interpreted, limit_programs
from tests.conftest import law_examples
from tests.families import FAMILIES
from tests.model.test_families import PROMPT, SCHEMA
from tests.rows.machine import step_machine
from tests.rows.paired_batches import Requests, with_usual_experts
from tests.rows.recorded_graph import RecordedGraph, record
from tests.rows.test_interleavings import PROMPTS

USUAL = ("llama", "mistral", "gpt-oss")
"""Families that run in each run: full attention, windows, and both with sinks and experts."""

NOT_RECORDED = {"gemma2": "the Triton kernels do not compute the attention of this model"}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_programs(monkeypatch, 8)


class Recordings:
    def __init__(self) -> None:
        self.made: list[RecordedGraph] = []

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[RecordedGraph, torch.Tensor]:
        graph, result = record(run)
        self.made.append(graph)
        return graph, result

    @property
    def num_replays(self) -> int:
        return sum(graph.num_replays for graph in self.made)


@pytest.mark.parametrize(
    "family", [each if each in USUAL else pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES]
)
def test_a_recorded_step_serves_other_requests(family: str, caplog: pytest.LogCaptureFixture) -> None:
    """Replays give the logits of steps that are not recorded, for other requests in other places of memory."""
    model, recordings = with_usual_experts(family), Recordings()
    graphs = StepGraphs(model, recordings)
    with interpreted(), caplog.at_level(logging.WARNING):
        graphs.record_all()
    requests = Requests(model, family, graphs)

    distances = [requests.step(sizes) for sizes in ([1, 2, 1], [0, 1, 0], [1, 0, 2], [1, 1, 1], [3, 0, 0])]

    assert max(distances) < 1e-5
    if family in NOT_RECORDED:
        assert NOT_RECORDED[family] in caplog.text
    assert recordings.num_replays == (0 if family in NOT_RECORDED else 5)


@pytest.mark.slow
@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_any_interleaving_gives_the_logits_of_the_reference(
    family: str, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining, leaving and computing in any order changes no logits of any row, by recorded steps or by the kernels."""
    monkeypatch.setattr(step_graphs, "SIZES", (1, 4, 16))
    model, recordings = with_usual_experts(family), Recordings()
    graphs = StepGraphs(model, recordings) if is_recorded else None
    with interpreted():
        if graphs is not None:
            graphs.record_all()
    with nullcontext() if is_recorded else interpreted():
        run_state_machine_as_test(
            step_machine(model, 1e-5, graphs),
            settings=settings(max_examples=max(20, law_examples(0.005)), stateful_step_count=12),
        )

    assert (recordings.num_replays > 10) is is_recorded


def graphs_of_llama() -> tuple[Model, Recordings, StepGraphs]:
    model, recordings = with_usual_experts("llama"), Recordings()
    return model, recordings, StepGraphs(model, recordings)


def test_a_step_without_room_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that are longer than their places are not cut: the step is not replayed."""
    monkeypatch.setattr(segment_lists, "_MOST_SEGMENTS", -1)
    model, recordings, graphs = graphs_of_llama()
    with interpreted():
        graphs.record_all()
    requests = Requests(model, "llama", graphs)

    assert requests.step([1, 1, 1]) < 1e-5
    assert (len(recordings.made), recordings.num_replays) == (2, 0)


def test_a_changed_model_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, recordings, graphs = graphs_of_llama()
    monkeypatch.setattr(step_graphs, "SIZES", (1,))
    requests = Requests(model, "llama", graphs, PROMPTS[:1])
    with interpreted():
        graphs.record_all()
        norm = model.hf.model.norm
        norm.weight = torch.nn.Parameter(norm.weight.detach() * torch.linspace(0.5, 2, len(norm.weight)))

        with pytest.raises(ModelChanged):
            requests.step([1])
    assert (len(recordings.made), recordings.num_replays) == (1, 0)


def test_a_model_with_a_hook_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays would leave the code of a hook out."""
    monkeypatch.setattr(step_graphs, "SIZES", (1,))
    hf = with_usual_experts("llama").hf
    hf.model.norm.register_forward_hook(lambda _module, _inputs, output: output * 2)
    model, recordings = Model(hf), Recordings()
    graphs = StepGraphs(model, recordings)
    requests = Requests(model, "llama", graphs, PROMPTS[:1])
    with interpreted():
        graphs.record_all()

        assert requests.step([1]) < 1e-5
    assert (len(recordings.made), recordings.num_replays) == (0, 0)


def test_graphs_that_inference_mode_recorded_serve_other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a graph can be written outside of the inference mode in which it was recorded."""
    monkeypatch.setattr(step_graphs, "SIZES", (1,))
    model, recordings, graphs = graphs_of_llama()
    requests = Requests(model, "llama", graphs, PROMPTS[:1])

    with interpreted(), torch.inference_mode():
        assert requests.step([1]) < 1e-5
    assert requests.step([1]) < 1e-5
    assert (len(recordings.made), recordings.num_replays) == (1, 2)


def test_a_recorder_that_fails_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A step that cannot be recorded runs as without graphs. It is not tried again, and a warning says why."""
    tries: list[object] = []

    def fail(run: Callable[[], torch.Tensor]) -> Any:
        tries.append(run)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    model = with_usual_experts("llama")
    requests = Requests(model, "llama", StepGraphs(model, fail), PROMPTS[:1])
    with interpreted(), caplog.at_level(logging.WARNING):
        assert max(requests.step([1]), requests.step([1])) < 1e-5

    assert len(tries) == len(caplog.records) == 1
    assert caplog.records[0].message.endswith("run without graphs: operation not permitted when stream is capturing")


def test_services_and_engines_use_the_graphs_of_their_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service records all sizes before its first request. Its answers are those without graphs."""
    monkeypatch.setattr(step_graphs, "SIZES", (1,))
    engine = Engine(with_usual_experts("llama"), ByteTokenizer())
    engine.add_schema(SCHEMA)
    expected = engine.generate(PROMPT, max_new_tokens=3).token_ids
    recordings = Recordings()
    graphs = engine._executor.graphs = StepGraphs(engine.model, recordings)

    with interpreted():
        with engine.service() as service:
            assert service.drain(60)
        assert len(recordings.made) == 1
        graphs.record_all()
    found = engine.generate(PROMPT, max_new_tokens=3).token_ids

    assert found == expected
    assert (len(recordings.made), recordings.num_replays) == (1, 3)


def test_graphs_hold_no_kv() -> None:
    """After a step, stored KV and tails can be freed, although the memory of the graph has their addresses."""
    model, _, graphs = graphs_of_llama()
    with interpreted():
        graphs.record_all()
    requests = Requests(model, "llama", graphs, PROMPTS[:1])
    requests.step([1])
    held = [weakref.ref(segment.kv) for segment in requests.rows[0][0].stored]
    assert held

    del requests
    gc.collect()
    assert [each() for each in held] == [None] * len(held)
