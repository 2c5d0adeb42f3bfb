"""Copies from the host to the device: token IDs, positions, masks and lists of segments.

On CUDA, the host queues a copy and goes on; any other copy would wait for all work of the device before it. Numbers
are put into pinned memory for it. PyTorch gives pinned memory to other tensors only when the copies from it have ended:
each copy records an event. One buffer for all steps would not be safe. Nothing says that the step before has ended: the
result of a step with parts of prompts only is not read, and threads share the graphs of a model.
"""

from __future__ import annotations

import torch


def to_device(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return numbers of the host on a device. Operations that are queued later read them.

    On the CPU, this is the same tensor.
    """
    return (_pinned(numbers) if device.type == "cuda" else numbers).to(device, non_blocking=True)


def write_to_device(memory: torch.Tensor, numbers: torch.Tensor) -> None:
    """Write numbers of the host to memory of a device. Operations that are queued before still read the old ones."""
    memory.copy_(_pinned(numbers) if memory.device.type == "cuda" else numbers, non_blocking=True)


def _pinned(numbers: torch.Tensor) -> torch.Tensor:
    """Return the numbers in pinned memory. Numbers that are on a device already stay there.

    A mask may be expanded, so that several of its numbers are one place in memory: PyTorch pins none of these.
    """
    return numbers.contiguous().pin_memory() if numbers.device.type == "cpu" else numbers
