"""The form of a progress callback of commands, measurements and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the current task, the amount done, and the total or None if it is not known."""


def silent(_task: str, _done: int, _total: int | None) -> None:
    """Show no progress."""
