"""A stand-in for CUDA graphs on the CPU: it records the operations of a function, and runs them again on the same memory.

As the capture of a CUDA graph does, it refuses what needs numbers of the device on the host, and keeps every number of
the host as it was.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_READS = frozenset(
    {
        *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount"),
        *("unique", "_unique2", "unique_dim", "unique_consecutive"),
    }
)
"""Operations that copy numbers to the host, or have results whose shapes depend on numbers."""

_COPIES_TO_THE_DEVICE = frozenset({"lift_fresh"})
"""What `torch.tensor` calls. On a GPU, its numbers come from memory that a graph does not keep."""

_METHODS_THAT_READ = frozenset(
    {"tolist", "numpy", "item", "__array__", "__bool__", "__int__", "__float__", "__index__"}
)


class NotRecorded(RuntimeError): ...


class RecordedGraph(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []
        self.num_replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if name in _READS or _has_unknown_shape(name, args) or name in _COPIES_TO_THE_DEVICE:
            raise NotRecorded(f"'{func}' cannot be recorded")
        with torch._C.DisableTorchFunction():  # an operation may read its own inputs: kernels in the interpreter do
            result = func(*args, **kwargs)
        if not func.is_view:
            self._operations.append((func, args, kwargs, result))
        return result

    def replay(self) -> None:
        """Run all operations again, and write their results to the same memory."""
        self.num_replays += 1
        for func, args, kwargs, result in self._operations:
            again = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for old, new in zip(_tensors(result), _tensors(again), strict=True):
                    old.copy_(new)


class _NoReads(TorchFunctionMode):
    """Refuses methods of tensors that read numbers without an operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _METHODS_THAT_READ:
            raise NotRecorded(f"'{func.__name__}' reads numbers of the device")
        return func(*args, **(kwargs or {}))


def record(run: Callable[[], torch.Tensor]) -> tuple[RecordedGraph, torch.Tensor]:
    """Record what a function does, as a `Recorder` of step graphs."""
    graph = RecordedGraph()
    with patch.object(torch.cuda, "is_current_stream_capturing", lambda: True), _NoReads(), graph:
        result = run()
    return graph, result


def _has_unknown_shape(name: str, args: Any) -> bool:
    """Whether an operation takes indices as bool masks, whose number of true places decides about shapes."""
    if name in {"index", "index_put", "index_put_", "_index_put_impl_"}:
        return any(index is not None and index.dtype is torch.bool for index in args[1])
    return name == "repeat_interleave" and isinstance(args[0], torch.Tensor) and len(args) == 1


def _tensors(result: Any) -> list[torch.Tensor]:
    parts = result if isinstance(result, tuple | list) else [result]
    return [part for part in parts if isinstance(part, torch.Tensor)]
