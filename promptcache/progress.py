"""The form of a progress callback of commands, measurements and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

_Item = TypeVar("_Item")

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the current task, the amount done, and the total or None if it is not known."""


def silent(_task: str, _done: int, _total: int | None) -> None:
    """Show no progress."""


def tracked(items: Iterable[_Item], show: Progress, task: str, total: int | None = None) -> Iterator[_Item]:
    """Yield items, and show how many are done."""
    for done, item in enumerate(items):
        show(task, done, total)
        yield item
