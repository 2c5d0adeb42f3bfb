"""What of the encodings of one layout can serve another: those that are the same computation.

Comes in: two layouts under one tokenizer. Goes out: which encodings are kept, made and dropped, and why. Two encodings
are the same where their digests are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from promptcache.layout import Layout, RunState, run_states

_Place: TypeAlias = tuple[str, int, tuple[str, ...]]


class Reason(StrEnum):
    """Why an encoding has to be made."""

    NEW = "new"
    TEXT = "its text changed"
    MOVED = "it moved"
    CONTEXT = "what it sees changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeEncoding:
    """An encoding that the old schema does not have.

    Attributes:
        start: Its first position; `old_start` that of the encoding whose place it takes, None where there is none.
    """

    module: str
    scaffolds: tuple[str, ...]
    num_tokens: int
    reason: Reason
    start: int
    old_start: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingChanges:
    """The encodings of two schemas, each computation counted once."""

    num_kept: int
    num_kept_tokens: int
    num_dropped: int
    num_dropped_tokens: int
    made: tuple[MadeEncoding, ...]

    @property
    def num_made_tokens(self) -> int:
        """Tokens that have to be encoded."""
        return sum(each.num_tokens for each in self.made)


def compare_encodings(old: Layout, new: Layout, renamed: Mapping[str, str]) -> EncodingChanges:
    """Compare the encodings of two layouts.

    Args:
        old: What may be stored already.
        new: What is wanted now.
        renamed: New paths of modules by their old ones.
    """
    before, after = _by_digest(old), _by_digest(new)
    at_place = {_place(each, old, renamed, ordinal): each for ordinal, each in _numbered(before.values(), old)}
    made = [
        _made(each, new, at_place.get(_place(each, new, {}, ordinal)))
        for ordinal, each in _numbered([after[key] for key in after if key not in before], new)
    ]
    kept = [each for key, each in before.items() if key in after]
    dropped = [each for key, each in before.items() if key not in after]
    return EncodingChanges(
        num_kept=len(kept),
        num_kept_tokens=_num_tokens(kept),
        num_dropped=len(dropped),
        num_dropped_tokens=_num_tokens(dropped),
        made=tuple(made),
    )


def _by_digest(layout: Layout) -> dict[str, RunState]:
    """Return one state for each computation, by the digest of its encoding."""
    found: dict[str, RunState] = {}
    for state in run_states(layout):
        found.setdefault(state.encoding.digest, state)
    return found


def _numbered(found: Iterable[RunState], layout: Layout) -> Iterator[tuple[int, RunState]]:
    """Yield states with the place of their run among the runs of its module."""
    for each in found:
        yield layout.runs_of[layout.runs[each.run].module].index(each.run), each


def _place(each: RunState, layout: Layout, renamed: Mapping[str, str], ordinal: int) -> _Place:
    module = layout.runs[each.run].module
    return renamed.get(module, module), ordinal, each.scaffolds


def _made(each: RunState, layout: Layout, old: RunState | None) -> MadeEncoding:
    return MadeEncoding(
        module=layout.runs[each.run].module,
        scaffolds=each.scaffolds,
        num_tokens=each.encoding.num_tokens,
        reason=_reason(each, old),
        start=each.encoding.position_ids[0],
        old_start=None if old is None else old.encoding.position_ids[0],
    )


def _reason(each: RunState, old: RunState | None) -> Reason:
    if old is None:
        return Reason.NEW
    if each.encoding.token_ids != old.encoding.token_ids:
        return Reason.TEXT
    return Reason.MOVED if each.encoding.position_ids != old.encoding.position_ids else Reason.CONTEXT


def _num_tokens(found: Sequence[RunState]) -> int:
    return sum(each.encoding.num_tokens for each in found)
