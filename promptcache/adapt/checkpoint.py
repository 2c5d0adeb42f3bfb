"""Checkpoints of a training: adapter, optimizer and progress in one file, which is replaced as a whole."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from promptcache.atomic import atomic_write
from promptcache.diagnostics import InvalidValue, first_line

CHECKPOINT = "checkpoint.pt"
"""Name of the file in the folder of an adapter."""

_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of a training after a step.

    Attributes:
        identity: Everything that a continued training must have in common with this one, by name.
        num_steps: Steps that are done.
        seconds: Time of these steps.
        before: The figures of the first validation.
        scale: Distances `[L, 2]` of held-out KV from that of plain prefill, without the adapter.
        adapter: The weights of the adapter, by layers.
        optimizer: The state of the optimizer.
    """

    identity: Mapping[str, object]
    num_steps: int
    seconds: float
    before: Mapping[str, Any]
    scale: torch.Tensor
    adapter: Sequence[torch.Tensor]
    optimizer: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Write the checkpoint into a folder.

        Raises:
            OSError: The file cannot be written.
        """
        data = {each.name: getattr(self, each.name) for each in fields(self)}
        buffer = io.BytesIO()
        torch.save({**data, "version": _VERSION}, buffer)
        with atomic_write(folder / CHECKPOINT) as file:
            file.write(buffer.getbuffer())

    def check(self, identity: Mapping[str, object], folder: Path) -> None:
        """Refuse to continue a training with other settings.

        Raises:
            InvalidValue: Names the first difference.
        """
        for name, value in identity.items():
            if self.identity.get(name) != value:
                raise InvalidValue(
                    f"out: '{folder}' has a training with another {name} ({self.identity.get(name)}, not {value}); "
                    "continue it with the same one, or name another folder"
                )


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the checkpoint of a folder, or None for a folder that is empty or does not exist.

    Raises:
        InvalidValue: It is no folder, has other files only, or its checkpoint cannot be read.
    """
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise InvalidValue(f"out: '{folder}' is no folder")
    file = folder / CHECKPOINT
    if not file.is_file():
        if any(not each.name.endswith(".tmp") for each in folder.iterdir()):
            raise InvalidValue(f"out: '{folder}' has other files and no {CHECKPOINT}; name a new or empty folder")
        return None
    try:
        data = torch.load(file, map_location="cpu", weights_only=True)
        if data.pop("version") != _VERSION:
            raise ValueError("it is of another version")
        return Checkpoint(**data)
    except (EOFError, KeyError, RuntimeError, TypeError, UnpicklingError, ValueError) as error:
        raise InvalidValue(f"out: '{file}' cannot be read: {first_line(error)}; name another folder") from error
