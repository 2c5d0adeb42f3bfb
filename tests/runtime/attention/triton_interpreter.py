"""The Triton backend on a CPU, in Triton's interpreter. Importing this file skips the tests if triton is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from promptcache.runtime.attention import TritonBackend, register_backend, unregister_backend

pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton compiles for a GPU in this run", allow_module_level=True)


class InterpretedBackend(TritonBackend):
    """The backend with its kernels in the interpreter."""

    name = "triton, interpreted"
    dtypes = frozenset({torch.float32, torch.bfloat16})

    def runs_on(self, device: torch.device) -> bool:
        """Whether the device is the CPU."""
        return device.type == "cpu"


@contextmanager
def interpreted() -> Iterator[None]:
    """Compute attention with the interpreter."""
    backend = InterpretedBackend()
    register_backend(backend)
    try:
        yield
    finally:
        unregister_backend(backend.name)
