"""The choice of attention kernels, with a clock that goes as told, and the Triton kernels in the interpreter.

The interpreter takes seconds for a request, so most tests compute none.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from promptcache.attention import Kernels
from promptcache.diagnostics import InvalidValue
from promptcache.engine import Engine
from promptcache.kv import KVShape
from promptcache.model.model import Model
from promptcache.rows import Batch, choose_kernels, kernel_choice, open_graphs, step_graphs, used_kernels
from promptcache.rows.kernel_choice import fastest_kernels
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.attention.triton_interpreter import InterpretedBackend, interpreted, limit_programs
from tests.families import random_model
from tests.rows.recorded_graph import record

SECONDS = {Kernels.TORCH: 0.003, Kernels.TRITON: 0.002, Kernels.GRAPHS: 0.001}
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PROMPTCACHE_ATTENTION", raising=False)
    return tmp_path / "promptcache" / "attention.json"


@pytest.fixture
def _nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice.Batch, "step", lambda *_: None)


idle = pytest.mark.usefixtures("_nothing_computed")


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_programs(monkeypatch, 4)
    monkeypatch.setattr(kernel_choice, "_ROUNDS", 1)


class Clock:
    """Each reading is later than the one before by the seconds of the kernels that the model has now."""

    def __init__(self, model: Model, seconds: Mapping[Kernels, float] = SECONDS) -> None:
        self._model, self._seconds = model, seconds
        self._now, self.num_readings = 0.0, 0

    def __call__(self) -> float:
        self.num_readings += 1
        if self._model.kernels is not None:
            self._now += self._seconds[self._model.kernels]
        return self._now


def llama(**changes: Any) -> Model:
    """A small model with so few positions that the measured request is short."""
    return Model(random_model("llama", **changes), context_length=16)


def choice(model: Model, clock: Clock | None = None) -> tuple[Kernels, bool]:
    clock = clock or Clock(model)
    with interpreted():
        found = fastest_kernels(model, record, clock)
    assert model.kernels is None
    return found, clock.num_readings > 0


@pytest.mark.usefixtures("few_programs")
def test_each_kind_computes_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts and two steps each, the first of which warm up: by no Triton kernel, by them, and by graphs."""
    model, recordings = llama(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1), list[Any]()
    computed, step = list[tuple[Kernels | None, int]](), kernel_choice.Batch.step

    def stepped(batch: Batch, work: Any) -> Any:
        computed.append((model.kernels, sum(len(token_ids) for _, token_ids in work)))
        return step(batch, work)

    def recorded(run: Callable[[], torch.Tensor]) -> Any:
        graph, result = record(run)
        recordings.append(graph)
        return graph, result

    monkeypatch.setattr(kernel_choice.Batch, "step", stepped)
    clock = Clock(model)
    with interpreted():
        assert fastest_kernels(model, recorded, clock) is Kernels.GRAPHS

    assert computed == [(each, size) for _ in range(2) for each in Kernels for size in (4, 1)]
    assert [each.num_replays for each in recordings] == [2, 2]
    assert clock.num_readings > 2 * 3 * len(Kernels)


@idle
@pytest.mark.parametrize("fastest", Kernels)
def test_the_fastest_kernels_are_chosen(fastest: Kernels) -> None:
    """Any of the three may be the fastest; a slower one is not taken."""
    model = llama()

    assert choice(model, Clock(model, {**SECONDS, fastest: 0.0001})) == (fastest, True)


@idle
def test_a_choice_is_measured_once(file: Path) -> None:
    """The next engine reads it, whatever its clock would show."""
    assert choice(llama()) == (Kernels.GRAPHS, True)
    (seconds,) = json.loads(file.read_bytes()).values()
    assert list(seconds) == ["torch", "triton", "graphs"]
    model = llama()

    assert choice(model, Clock(model, {**SECONDS, Kernels.TORCH: 0.0})) == (Kernels.GRAPHS, False)
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@idle
def test_another_shape_device_or_version_is_measured(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice is for one device, one shape and the versions of the kernels. All are kept."""
    assert choice(llama()) == (Kernels.GRAPHS, True)

    for changes in ({"num_hidden_layers": 1}, {"num_key_value_heads": 4}, {"head_dim": 32}, {"dtype": torch.bfloat16}):
        assert choice(llama(**changes)) == (Kernels.GRAPHS, True)
    with monkeypatch.context() as patched:
        patched.setattr(kernel_choice, "_device_name", lambda device: "another GPU")
        model = llama()
        assert choice(model, Clock(model, {**SECONDS, Kernels.TORCH: 0.0})) == (Kernels.TORCH, True)
        patched.setattr(kernel_choice, "kernel_versions", lambda: ("3.0", "4.0", "new"))
        assert choice(llama()) == (Kernels.GRAPHS, True)
        assert choice(llama()) == (Kernels.GRAPHS, False)

    assert choice(llama()) == (Kernels.GRAPHS, False)
    assert len(json.loads(file.read_bytes())) == 7


def damaged(good: bytes) -> list[bytes]:
    (key,) = json.loads(good)
    forms: list[object] = [[], {key: None}, {key: []}, {key: {}}, {key: {"torch": 1.0}}, {key: "graphs"}, {"x": 1}]
    forms += [{key: {"torch": 1.0, "triton": value}} for value in ("1", None, float("nan"), True)]
    forms += [{key: {"torch": 1.0, "triton": 2.0, "cudnn": 0.5}}]
    return [b"", good[:-9], b"\xff" + good, b"[" * 100_000, *(json.dumps(each).encode() for each in forms)]


@idle
def test_a_broken_file_is_measured_again_and_written_again(file: Path) -> None:
    """No content of the file raises an error or is believed without being what was written."""
    assert choice(llama()) == (Kernels.GRAPHS, True)
    good = file.read_bytes()

    for number, content in enumerate(damaged(good)):
        file.write_bytes(content)
        assert choice(llama()) == (Kernels.GRAPHS, True), number
        assert choice(llama()) == (Kernels.GRAPHS, False), number


@idle
@pytest.mark.parametrize("is_file", [True, False])
def test_a_folder_that_cannot_be_written_is_no_error(is_file: bool, file: Path) -> None:
    if is_file:
        file.parent.write_bytes(b"a file where the folder would be")
    else:
        file.mkdir(parents=True)

    assert choice(llama()) == choice(llama()) == (Kernels.GRAPHS, True)


@pytest.mark.parametrize("fault", [RuntimeError("out of shared memory\nmore"), OSError("no C compiler")])
def test_kernels_that_fail_are_not_chosen(
    fault: Exception, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch's kernels compute, a warning says why, and nothing is kept: the fault may end."""

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(InterpretedBackend, "prepare", fail)
    with caplog.at_level(logging.WARNING):
        found, _ = choice(llama())

    assert found is Kernels.TORCH
    assert len(caplog.records) == 1
    assert caplog.records[0].message.endswith(f"so that PyTorch's compute: {str(fault).splitlines()[0]}")
    assert not file.exists()


@pytest.mark.usefixtures("few_programs")
def test_graphs_that_cannot_be_recorded_are_not_chosen(caplog: pytest.LogCaptureFixture) -> None:
    """Without graphs the same kernels would seem as fast."""
    model = llama(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)

    def fail(_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    with interpreted(), caplog.at_level(logging.WARNING):
        assert fastest_kernels(model, fail, Clock(model)) is Kernels.TRITON
        caplog.clear()
        assert fastest_kernels(model, fail, Clock(model)) is Kernels.TRITON
    assert not caplog.records


@idle
def test_what_the_kernels_do_not_compute_is_not_measured() -> None:
    """Scores with a soft cap, and devices without the kernels."""
    capped, model = Model(random_model("gemma2")), llama()

    assert choice(capped) == (Kernels.TORCH, False)
    assert fastest_kernels(model, record, Clock(model)) is Kernels.TORCH


@idle
def test_slow_models_are_measured_in_one_round() -> None:
    """A round that takes longer than all may take is the last one."""
    quick, slow = llama(), llama(num_hidden_layers=1)
    clocks = Clock(quick), Clock(slow, dict.fromkeys(Kernels, 1.0))
    choice(quick, clocks[0])
    choice(slow, clocks[1])

    warm_up = one_round = 3 * len(Kernels)
    assert clocks[0].num_readings > warm_up + 5 * one_round
    assert clocks[1].num_readings < warm_up + one_round + 4


def test_the_environment_overrides_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is taken as it is; another one is refused and named."""
    for asked in Kernels:
        monkeypatch.setenv("PROMPTCACHE_ATTENTION", asked)
        assert llama().kernels is asked
    monkeypatch.setattr(kernel_choice, "fastest_kernels", Mock(side_effect=AssertionError))
    chosen = Mock(device=CUDA, kernels=Kernels.TORCH)
    choose_kernels(chosen)
    assert chosen.kernels is Kernels.TORCH

    monkeypatch.setenv("PROMPTCACHE_ATTENTION", "cudnn")
    with pytest.raises(InvalidValue, match=r"PROMPTCACHE_ATTENTION='cudnn'.*torch, triton, graphs"):
        llama()


def test_a_model_on_a_gpu_is_chosen_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU there is nothing to choose."""
    measured = Mock(return_value=Kernels.TRITON)
    monkeypatch.setattr(kernel_choice, "fastest_kernels", measured)
    on_cpu, on_gpu = llama(), Mock(device=CUDA, kernels=None)
    for model in (on_cpu, on_gpu, on_gpu):
        choose_kernels(model)

    assert (on_cpu.kernels, on_gpu.kernels) == (None, Kernels.TRITON)
    assert measured.call_count == 1


def test_the_choice_is_used_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's kernels no pass uses those in Triton, and the logits are the same. `stats` shows the choice."""
    used: list[object] = []
    prepare = InterpretedBackend.prepare
    monkeypatch.setattr(InterpretedBackend, "prepare", lambda *args: used.append(args) or prepare(*args))
    engine = Engine(Model(random_model("llama")), ByteTokenizer(), history=False)
    engine.add_schema('<schema name="s"><module name="m">abc</module></schema>')
    assert engine.stats().attention == "torch"
    logits = []
    for kernels in (Kernels.TORCH, Kernels.TRITON):
        used.clear()
        engine.model.kernels = kernels
        with interpreted():
            logits.append(engine.logits('<prompt schema="s"><m/>de</prompt>'))
            assert engine.stats().attention == kernels
        assert bool(used) is (kernels is Kernels.TRITON)

    torch.testing.assert_close(*logits, rtol=0, atol=1e-4)


def test_graphs_are_opened_only_if_they_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a choice they are, as before."""
    monkeypatch.setattr(step_graphs, "has_kernels", lambda shape: True)
    monkeypatch.setattr(step_graphs, "runs_own_code", lambda hf: False)
    shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=64, dtype=torch.bfloat16, device=CUDA)
    opened = {each: open_graphs(Mock(device=CUDA, kernels=each, shape=shape)) is not None for each in (None, *Kernels)}

    assert opened == {None: True, Kernels.TORCH: False, Kernels.TRITON: False, Kernels.GRAPHS: True}
    with interpreted():
        assert used_kernels(llama()) is Kernels.GRAPHS
