"""Counted without a GPU: a layer starts few kernels, and copies from the host do not wait for the device.

Tensors on the meta device stand for those on a GPU: they have shapes and no memory. Every operation of PyTorch that
makes or changes numbers counts as one kernel. Views, allocations and empty results start none. A few operations start
more than one kernel on a GPU, so a count is a lower bound; it depends on no machine.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from promptcache.attention import to_device, write_to_device
from promptcache.kv import KV, KVMemory
from promptcache.layout import Encoding, RequestTokens
from promptcache.model import Model
from promptcache.model.guard import ModelGuard
from promptcache.rows import Batch, Segment, open_copies
from promptcache.rows.step_graphs import StepGraphs

CPU, META, CUDA = map(torch.device, ("cpu", "meta", "cuda"))
MOST_KERNELS = 40
"""Kernels that a layer may start."""

_SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131_072,
    "eos_token_id": None,
}
_WITHOUT_KERNEL = frozenset({"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


class KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch does not annotate it
    """Counts kernels while it is active: operations that make or change numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.num_kernels = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        is_empty = bool(made) and all(each.numel() == 0 for each in made)
        if not func.is_view and name not in _WITHOUT_KERNEL and not is_empty:
            self.num_kernels += 1
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCase:
    """Tokens of each module, of each node of history and of a row's `own` module; a window ends inside of a module."""

    lengths: tuple[int, ...] = (64,) * 4
    history: tuple[int, ...] = ()
    own: int = 0
    window: int | None = None


_DIFFERENT = (52, 60, 68, 76)
CASES = {
    "no modules": LaunchCase(lengths=()),
    "one length": LaunchCase(),
    "different lengths": LaunchCase(lengths=_DIFFERENT),
    "history": LaunchCase(history=(32, 64, 128)),
    "own module": LaunchCase(own=65),
    "window": LaunchCase(window=112),
    "window, different lengths": LaunchCase(lengths=_DIFFERENT, window=112),
}


@cache
def meta_model(dtype: torch.dtype, num_layers: int, window: int | None) -> Model:
    """Return a small model on the meta device; with a window, all of its layers have it."""
    config: Any = (
        LlamaConfig(**_SIZES, num_hidden_layers=num_layers)
        if window is None
        else MistralConfig(**_SIZES, num_hidden_layers=num_layers, sliding_window=window)
    )
    model = Model(AutoModelForCausalLM.from_config(config, dtype=dtype).eval())
    meta = torch.device("meta")
    model.hf.to(meta)
    model.shape = replace(model.shape, device=meta)
    model.guard = ModelGuard(model.hf)
    return model


def prefill(model: Model, case: LaunchCase) -> Callable[[], object]:
    """Return the forward pass of one row's new tokens. Its modules were used before, so that copies of them exist."""
    copies, shared = open_copies(model, KVMemory(model.shape)), handles_of(model, case.lengths, 0)
    passes = []
    for _ in range(2):
        batch = Batch(model, copies)
        row = join(batch, model, case, 3, shared)
        passes.append(partial(batch.step, [(row, row.tokens.token_ids)]))
    first, second = passes
    first()
    return second


def decoding(num_rows: int, model: Model, case: LaunchCase) -> Callable[[], object]:
    """Return the forward pass of one token of each row, the second after its prompt."""
    batch, draw = Batch(model, open_copies(model, KVMemory(model.shape))), random.Random(0)
    shared = handles_of(model, case.lengths, 0)
    rows = [join(batch, model, case, 16 + (draw.randrange(8) if index else 0), shared) for index in range(num_rows)]
    batch.step([(row, row.tokens.token_ids) for row in rows])
    batch.step([(row, [0]) for row in rows])
    return partial(batch.step, [(row, [0]) for row in rows])


def join(batch: Batch, model: Model, case: LaunchCase, num_new: int, shared: Mapping[Encoding, KV]) -> Any:
    """Add a row over the modules of a case, its own KV included."""
    handles, history = dict(shared), dict[Encoding, KV]()
    if case.own:
        handles |= handles_of(model, (case.own,), 1 + last_position(handles))
    for length in case.history:
        history |= handles_of(model, (length,), 1 + last_position({**handles, **history}))
    first = 1 + last_position({**handles, **history})
    tokens = RequestTokens(
        parts=tuple(encoding.whole for encoding in handles),
        token_ids=(0,) * num_new,
        position_ids=tuple(range(first, first + num_new)),
    )
    row = batch.join(tokens, handles)
    row.growing = tuple(
        Segment(kv=handle, start=0, stop=handle.num_tokens, parts=(encoding.whole,))
        for encoding, handle in history.items()
    )
    return row


def last_position(handles: Mapping[Encoding, KV]) -> int:
    return max((encoding.position_ids[-1] for encoding in handles), default=-1)


def handles_of(model: Model, lengths: Sequence[int], first: int) -> dict[Encoding, KV]:
    """Return modules of these lengths, with a gap of one module behind each."""
    handles, start = {}, 0
    for length in lengths:
        positions = range(first + start, first + start + length)
        encoding = Encoding(token_ids=tuple(positions), position_ids=tuple(positions))
        handles[encoding] = KV.empty(model.shape, length)
        start += 2 * length
    return handles


Work = Callable[[Model, LaunchCase], Callable[[], object]]


@pytest.mark.long
@pytest.mark.parametrize("prepare", [prefill, partial(decoding, 1), partial(decoding, 3)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_with_triton_every_layer_starts_few_kernels(prepare: Work, case: LaunchCase) -> None:
    """Whatever the number of rows, segments and windows."""
    pytest.importorskip("triton", reason="triton is not installed")
    counts = []
    for num_layers in (2, 4):
        run = prepare(meta_model(torch.bfloat16, num_layers, case.window), case)
        with torch.no_grad(), KernelCounter() as counter:
            run()
        counts.append(counter.num_kernels)

    assert counts[1] - counts[0] <= 2 * MOST_KERNELS


def recorded_step(model: Model, graph: Any) -> Callable[[], object]:
    """Return a step of one row with a graph that was recorded."""
    batch = Batch(model, graphs=StepGraphs(model, lambda run: (graph, run())))
    row = join(batch, model, LaunchCase(), 1, handles_of(model, (16, 16), 0))
    batch.step([(row, [0])])
    return partial(batch.step, [(row, [0])])


@pytest.mark.long
@pytest.mark.parametrize(("window", "num_kernels"), [(None, 4), (8, 4)])
def test_with_a_graph_the_host_starts_few_kernels(window: int | None, num_kernels: int) -> None:
    """Beside the graph: copies of the tokens, of the places of new KV and of the lists of a window, and of the logits."""
    pytest.importorskip("triton", reason="triton is not installed")
    graph = Mock()
    run = recorded_step(meta_model(torch.bfloat16, 2, window), graph)

    with KernelCounter() as counter:
        run()

    assert (graph.replay.call_count, counter.num_kernels) == (2, num_kernels)


class Copies(TorchDispatchMode):
    """Notes for each copy of numbers and masks to the meta device, which stands for a GPU, whether the host waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name
        if name in {"aten::_to_copy", "aten::copy_"}:
            source = args[0] if name == "aten::_to_copy" else args[1]
            if source.device == CPU and result.device == META and not source.is_floating_point():
                self.waits.append(not (kwargs.get("non_blocking") or args[2:] == (True,)))
        return result


class MadeThere(TorchFunctionMode):
    """Notes tensors that are made from numbers of Python on the meta device: the host waits until they are copied."""

    def __init__(self) -> None:
        super().__init__()
        self.num_made = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in {torch.tensor, torch.as_tensor} and not isinstance(args[0], torch.Tensor):
            self.num_made += result.device == META
        return result


@pytest.mark.parametrize("prepare", [prefill, partial(decoding, 3), lambda model, _: recorded_step(model, Mock())])
@pytest.mark.parametrize("name", ["history", "own module", "window, different lengths"])
def test_no_step_waits_for_its_inputs(prepare: Work, name: str) -> None:
    """Tokens, positions, masks and lists of prefill, of steps of many rows, and of recorded steps."""
    pytest.importorskip("triton", reason="triton is not installed")
    model = meta_model(torch.bfloat16, 2, CASES[name].window)
    with MadeThere() as tensors, Copies() as copies:
        prepare(model, CASES[name])()

    assert len(copies.waits) > 2
    assert not any(copies.waits)
    assert tensors.num_made == 0


@pytest.mark.parametrize(
    "numbers",
    [torch.arange(6), torch.ones(1, 2, 1, 3).expand(-1, -1, 4, -1), torch.arange(6).view(2, 3).T, torch.arange(6)[::2]],
    ids=["whole", "expanded", "transposed", "every second"],
)
def test_numbers_for_a_gpu_are_pinned(numbers: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from other memory makes the host wait, whatever it asks for."""
    pinned = []

    def pin_memory(taken: torch.Tensor) -> torch.Tensor:  # as PyTorch does it on a machine with a GPU
        pinned.append(torch.empty_strided(taken.shape, taken.stride(), dtype=taken.dtype).copy_(taken))
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    memory = Mock(device=CUDA)
    write_to_device(memory, numbers)

    (copied,) = pinned
    memory.copy_.assert_called_once_with(copied, non_blocking=True)
    assert torch.equal(copied, numbers)


def test_numbers_on_a_device_stay_there() -> None:
    """PyTorch pins only numbers of the host."""
    numbers, memory = torch.arange(3, device=META), Mock(device=CUDA)

    write_to_device(memory, numbers)

    memory.copy_.assert_called_once_with(numbers, non_blocking=True)


def test_numbers_for_the_cpu_are_not_copied() -> None:
    """They are the same tensor; written ones are in place at once."""
    numbers, memory = torch.arange(3), torch.zeros(3, dtype=torch.long)

    assert to_device(numbers, CPU) is numbers
    write_to_device(memory, numbers)

    assert memory.tolist() == [0, 1, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_numbers_may_change_while_a_copy_waits() -> None:
    """While the device is busy, the host goes on: it may write to the same numbers, and copy others."""
    memory = torch.zeros(1000, dtype=torch.long, device=CUDA)
    numbers = torch.zeros(1000, dtype=torch.long)
    found = []
    torch.cuda._sleep(500_000_000)
    for value in range(20):
        numbers.fill_(value)
        write_to_device(memory, numbers)
        found.append((memory.clone(), to_device(numbers, CUDA)))

    assert all(bool((each == value).all()) for value, pair in enumerate(found) for each in pair)
