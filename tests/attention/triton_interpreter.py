"""The Triton backend on a CPU, in Triton's interpreter. Importing this file skips the tests if triton is not installed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from promptcache.attention import TritonBackend, register_backend, unregister_backend

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
    """The backend with its kernels in the interpreter."""

    dtypes = frozenset({torch.float64, torch.float32, torch.bfloat16})
    head_dims = TritonBackend.head_dims | {8}

    def __init__(self, name: str) -> None:
        self.name = name

    def runs_on(self, device: torch.device) -> bool:
        """Whether the device is the CPU."""
        return device.type == "cpu"


@contextmanager
def interpreted(name: str = "triton, interpreted") -> Iterator[None]:
    """Compute attention with the interpreter. One inside of another needs another name."""
    backend = InterpretedBackend(name)
    register_backend(backend)
    try:
        yield
    finally:
        unregister_backend(backend.name)
