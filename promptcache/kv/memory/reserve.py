"""Who would best lie beside whom: ranges kept free for encodings that were announced and have not come yet.

Comes in: keys with their sizes, in the order in which they would best lie. Goes out: ranges of blocks. Reservations are
hints: whoever needs the room gets it, and a key that finds its range taken lies somewhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from promptcache.kv.memory.arena import Block
from promptcache.kv.memory.ranges import Range


@dataclass(slots=True, eq=False)
class _Row:
    """Keys that shall lie side by side; `block` and `start` are set when the first of them comes.

    `waiting` are keys for which a range was taken and which have not come yet, `dropped` ranges of keys that will not.
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    dropped: list[Range] = field(default_factory=list)
    size: int = 0
    block: Block | None = None
    start: int = 0
    waiting: set[str] = field(default_factory=set)

    def range(self, key: str) -> Range:
        """Where in the block a key belongs."""
        return self.placed(self.ranges[key])

    def placed(self, inside: Range) -> Range:
        """Where in the block a range of the row is."""
        return Range(self.start + inside.start, self.start + inside.stop)


class Reservations:
    """The rows of a store, none longer than a block."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._rows: dict[str, _Row] = {}

    def announce(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Form rows of the keys that are in none yet."""
        row = _Row()
        for key, size in sizes:
            if key in self._rows or size > self._block_tokens:
                continue
            if row.size + size > self._block_tokens:
                row = _Row()
            row.ranges[key] = Range(row.size, row.size + size)
            row.size += size
            self._rows[key] = row

    def wanted(self, key: str) -> int:
        """Return the tokens of the row that `key` is in, if it has no place yet; else 0."""
        row = self._rows.get(key)
        return row.size if row is not None and row.block is None else 0

    def find(self, key: str, size: int, blocks: Sequence[Block]) -> tuple[Block, Range] | None:
        """Take the range where `key` belongs, if it is free; the first of a row takes room for all of it."""
        row = self._rows.get(key)
        if row is None or row.ranges[key].size != size:
            return None
        if row.block is None and not self._settle_down(row, blocks):
            return None
        assert row.block is not None, "it has settled down"
        wanted = row.range(key)
        if key in row.waiting:
            row.waiting.discard(key)
            return row.block, wanted
        return (row.block, wanted) if row.block.free.take_at(wanted) else None

    def drop(self, key: str) -> None:
        """Forget a key that nobody will put again."""
        row = self._rows.pop(key, None)
        if row is not None and key in row.waiting:
            self._give_back(row, {key})
        if row is not None:
            row.dropped.append(row.ranges.pop(key))

    def give_up(self) -> None:
        """Give back whatever is kept free."""
        for row in set(self._rows.values()):
            self._give_back(row, row.waiting)

    def forget(self, block: Block) -> None:
        """Forget that rows have a place in this block: it goes."""
        for row in set(self._rows.values()):
            if row.block is block:
                row.block = None
                row.waiting.clear()

    @staticmethod
    def _give_back(row: _Row, keys: set[str]) -> None:
        for key in keys:
            assert row.block is not None, "only a row with a place keeps room"
            row.block.free.give(row.range(key))
        row.waiting = row.waiting - keys

    def _settle_down(self, row: _Row, blocks: Sequence[Block]) -> bool:
        for block in blocks:
            taken = block.free.take(row.size)
            if taken is not None:
                row.block, row.start, row.waiting = block, taken.start, set(row.ranges)
                for unneeded in row.dropped:
                    block.free.give(row.placed(unneeded))
                return True
        return False
