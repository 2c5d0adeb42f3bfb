"""The Triton backend on a CPU, in Triton's interpreter. Importing this file skips the tests if triton is not installed."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from promptcache.attention import TritonBackend, register_backend, segment_lists, unregister_backend
from promptcache.rows import step_graphs

interpreter = pytest.importorskip("triton.runtime.interpreter", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton compiles for a GPU in this run", allow_module_level=True)


_LOCK = threading.Lock()
_run = interpreter.GridExecutor.__call__


def _run_alone(*args: Any, **kwargs: Any) -> None:
    """Run a kernel. The interpreter has one grid for all threads."""
    with _LOCK:
        _run(*args, **kwargs)


interpreter.GridExecutor.__call__ = _run_alone


class InterpretedBackend(TritonBackend):
    dtypes = frozenset({torch.float64, torch.float32, torch.bfloat16})
    head_dims = TritonBackend.head_dims | {8}

    def __init__(self, name: str) -> None:
        self.name = name

    def runs_on(self, device: torch.device) -> bool:
        return device.type == "cpu"


def limit_programs(patch: pytest.MonkeyPatch, number: int) -> None:
    """Start few programs, and record steps of 1 and 4 tokens: the interpreter takes long for idle programs, too."""
    for name in ("_TARGET_PROGRAMS", "_MORE_ITEMS"):
        patch.setattr(segment_lists, name, number)
    patch.setattr(step_graphs, "SIZES", (1, 4))


@contextmanager
def interpreted(name: str = "triton, interpreted") -> Iterator[None]:
    """Compute attention with the interpreter. One inside of another needs another name."""
    backend = InterpretedBackend(name)
    register_backend(backend)
    try:
        yield
    finally:
        unregister_backend(backend.name)
