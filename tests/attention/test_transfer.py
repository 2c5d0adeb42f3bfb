"""Copies from the host to the device do not wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from promptcache.attention import to_device, write_to_device
from promptcache.rows import Batch
from promptcache.rows.step_graphs import StepGraphs
from tests.attention import launches
from tests.attention.launches import Models, Sizes, count_decoding, count_ttft

CASES = ("history", "own module", "window, different lengths")
CPU, META, CUDA = map(torch.device, ("cpu", "meta", "cuda"))


class Copies(TorchDispatchMode):
    """Notes copies of whole numbers and masks to the meta device, which stands for a GPU.

    Attributes:
        waits: For each copy, whether the host waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note it if it is such a copy."""
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
        """Call a function, and note it if it makes such a tensor."""
        result = func(*args, **(kwargs or {}))
        if func in {torch.tensor, torch.as_tensor} and not isinstance(args[0], torch.Tensor):
            self.num_made += result.device == META
        return result


def replayed_step(dtype: torch.dtype, _: Any) -> None:
    """Run a step that was recorded."""
    pytest.importorskip("triton", reason="triton is not installed")
    model = Models(dtype).with_layers(2, 8)
    case = launches.LaunchCase(lengths=(16, 16))
    batch = Batch(model, graphs=StepGraphs(model, lambda run: (Mock(), run())))
    row = launches.join(batch, model, case, 1, launches.handles_of(model, (16, 16), 0))
    batch.step([(row, [0])])


@pytest.mark.parametrize("run", [count_ttft, count_decoding, replayed_step])
def test_no_step_waits_for_its_inputs(
    run: Callable[[torch.dtype, Sizes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens, positions, masks and lists of prefill, of steps of many rows, and of recorded steps."""
    cases = launches.launch_cases
    monkeypatch.setattr(launches, "STEP_ROWS", (3,))
    monkeypatch.setattr(launches, "launch_cases", lambda sizes: {name: cases(sizes)[name] for name in CASES})
    with MadeThere() as tensors, Copies() as copies:
        run(torch.bfloat16, Sizes(num_modules=2, module_tokens=16, new_tokens=3))

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
