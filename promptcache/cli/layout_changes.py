"""Compare two layouts under one tokenizer: moved slots, kept and new encodings, and reserves that would keep more.

Two encodings are equal if their digests are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from promptcache.language import CheckedParameter, Placement, accepts_all
from promptcache.layout import Layout, RunState, Slot, StateKind, lay_out, run_states
from promptcache.tokenizer import Tokenizer

_Place: TypeAlias = tuple[str, int, StateKind, tuple[str, ...]]
_MAX_LAID_OUT = 5_000  # modules in all layouts of the search for reserves


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """Slot that moved, or accepts other texts: `[start, stop)` before and after, None if it does not exist.

    Attributes:
        now_required: Whether prompts must fill the slot now but not before.
        narrowed: Whether the slot may refuse a text that it accepted: it is shorter, or its type, choices or pattern
            changed so that they may refuse one.
    """

    module: str
    parameter: str
    before: tuple[int, int] | None
    now: tuple[int, int] | None
    now_required: bool
    narrowed: bool

    @property
    def harmful(self) -> bool:
        """Whether a prompt that was valid for this slot may be invalid now."""
        return self.now is None or self.now_required or self.narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChanges:
    """Modules that only one of the schemas has; a renamed module has the same text under another path."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]


class Reason(StrEnum):
    """Reason why an encoding is missing and has to be computed."""

    NEW = "new"
    TEXT = "its text changed"
    MOVED = "it moved"
    CONTEXT = "what it sees changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeEncoding:
    """Encoding that only the new schema has.

    Attributes:
        start: Its first position.
        old_start: The first position of the encoding that it replaces, or None.
    """

    module: str
    scaffolds: tuple[str, ...]
    num_tokens: int
    reason: Reason
    start: int
    old_start: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingChanges:
    """Encodings of two schemas; equal encodings count once."""

    num_kept: int
    num_kept_tokens: int
    num_dropped: int
    num_dropped_tokens: int
    made: tuple[MadeEncoding, ...]

    @property
    def num_made_tokens(self) -> int:
        """Number of tokens to encode."""
        return sum(each.num_tokens for each in self.made)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleReserve:
    """Positions that a module has to reserve so that the modules after it do not move.

    Attributes:
        module: Its path in the new schema.
        reserve: The length of the longer version.
        num_empty: Positions that the reserve leaves empty after the shorter version.
        in_new: Whether the new schema has the shorter version, so that the reserve helps if added there.
    """

    module: str
    reserve: int
    num_empty: int
    in_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveChanges:
    """Encodings that would also be kept if both schemas had these reserves."""

    modules: tuple[ModuleReserve, ...]
    num_kept: int
    num_kept_tokens: int


def compare_modules(old: Layout, new: Layout) -> ModuleChanges:
    """Compare the paths and texts of modules."""
    added = [path for path in new.schema.modules if path not in old.schema.modules]
    removed = [path for path in old.schema.modules if path not in new.schema.modules]
    by_text = {_text(new, path): path for path in reversed(added)}
    renamed: dict[str, str] = {}
    for path in removed:
        text = _text(old, path)
        if any(text) and by_text.get(text) not in {None, *renamed.values()}:
            renamed[path] = by_text[text]
    return ModuleChanges(
        added=tuple(path for path in added if path not in renamed.values()),
        removed=tuple(path for path in removed if path not in renamed),
        renamed=tuple(renamed.items()),
    )


def _text(layout: Layout, path: str) -> tuple[tuple[object, ...], ...]:
    """Return the tokens and parameters of a module's own runs."""
    return tuple(
        tuple(
            (piece.parameter, piece.filler_ids) if isinstance(piece, Slot) else piece.token_ids
            for piece in layout.runs[run].pieces
        )
        for run in layout.runs_of[path]
    )


def compare_slots(old: Layout, new: Layout, renamed: Mapping[str, str]) -> Iterator[SlotChange]:
    """Yield the slots that changed; `renamed` has the new paths of modules by their old paths."""
    before = {(renamed.get(slot.module, slot.module), slot.parameter): slot for slot in _slots(old)}
    now = {(slot.module, slot.parameter): slot for slot in _slots(new)}
    for key in dict.fromkeys((*before, *now)):
        was, has = before.get(key), now.get(key)
        now_required = has is not None and has.required and (was is None or not was.required)
        narrowed = was is not None and has is not None and _is_narrower(was, has, old, new)
        if _range(was) != _range(has) or now_required or narrowed:
            yield SlotChange(
                module=key[0],
                parameter=key[1],
                before=_range(was),
                now=_range(has),
                now_required=now_required,
                narrowed=narrowed,
            )


def _is_narrower(was: Slot, has: Slot, old: Layout, new: Layout) -> bool:
    before, now = _parameter(was, old), _parameter(has, new)
    shorter = now.num_positions < before.num_positions or now.length < before.length
    return shorter or not accepts_all(now, before)


def _parameter(slot: Slot, layout: Layout) -> CheckedParameter:
    return layout.schema.parameters[slot.module][slot.parameter]


def _slots(layout: Layout) -> Iterator[Slot]:
    return (slot for run in layout.runs for slot in run.slots)


def _range(slot: Slot | None) -> tuple[int, int] | None:
    return None if slot is None else (slot.start, slot.stop)


def compare_encodings(old: Layout, new: Layout, renamed: Mapping[str, str]) -> EncodingChanges:
    """Compare the encodings of two layouts.

    Args:
        old: The layout whose encodings may be stored already.
        new: The layout whose encodings are needed now.
        renamed: New paths of modules by their old paths.
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
    """Return one state for each encoding, by the digest of the encoding."""
    found: dict[str, RunState] = {}
    for state in run_states(layout):
        found.setdefault(state.encoding.digest, state)
    return found


def _numbered(found: Iterable[RunState], layout: Layout) -> Iterator[tuple[int, RunState]]:
    """Yield states with the index of their run among the runs of its module."""
    for each in found:
        if each.kind is StateKind.STAND_IN:
            text = layout.stand_ins.index(each.encoding.token_ids)
            yield len(each.sees) * len(layout.stand_ins) + text, each
        else:
            yield layout.runs_of[each.module(layout)].index(each.run), each


def _place(each: RunState, layout: Layout, renamed: Mapping[str, str], ordinal: int) -> _Place:
    module = each.module(layout)
    return renamed.get(module, module), ordinal, each.kind, each.scaffolds


def _made(each: RunState, layout: Layout, old: RunState | None) -> MadeEncoding:
    return MadeEncoding(
        module=each.module(layout),
        scaffolds=each.scaffolds,
        num_tokens=each.encoding.num_tokens,
        reason=_reason(each, old, layout),
        start=each.encoding.position_ids[0],
        old_start=None if old is None else old.encoding.position_ids[0],
    )


def _reason(each: RunState, old: RunState | None, layout: Layout) -> Reason:
    if old is None:
        return Reason.NEW
    if each.encoding.token_ids != old.encoding.token_ids:
        return Reason.TEXT
    is_moved = layout.placement is Placement.FIXED and each.encoding.position_ids != old.encoding.position_ids
    return Reason.MOVED if is_moved else Reason.CONTEXT


def _num_tokens(found: Sequence[RunState]) -> int:
    return sum(each.encoding.num_tokens for each in found)


def find_reserves(old: Layout, new: Layout, renamed: Mapping[str, str], tokenizer: Tokenizer) -> ReserveChanges | None:
    """Return the fewest reserves that keep as many tokens as possible, or None if reserves keep nothing."""
    sizes: dict[str, tuple[int, int]] = {}
    old_paths: dict[str, str] = {}
    for old_path, before in old.modules.items():
        path = renamed.get(old_path, old_path)
        if path in new.modules:
            size = before.stop - before.start, new.modules[path].stop - new.modules[path].start
            if size[0] != size[1]:
                sizes[path], old_paths[path] = size, old_path
    if not sizes:
        return None

    def kept(paths: Iterable[str]) -> list[RunState]:
        longer = {path: max(sizes[path]) for path in paths}
        old_reserves = {old_paths[path]: longer[path] for path in longer}
        padded = lay_out(old.schema, tokenizer, placement=old.placement, reserves=old_reserves)
        after = _by_digest(lay_out(new.schema, tokenizer, placement=new.placement, reserves=longer))
        return [state for digest, state in _by_digest(padded).items() if digest in after]

    now, best = kept(()), kept(sizes)
    if _num_tokens(best) <= _num_tokens(now):
        return None
    needed = list(sizes)
    if len(needed) * len(new.modules) <= _MAX_LAID_OUT:
        for path in sorted(sizes, key=lambda path: path.count("/")):  # outer modules before inner ones
            fewer = [each for each in needed if each != path]
            if _num_tokens(kept(fewer)) >= _num_tokens(best):
                needed = fewer
    return ReserveChanges(
        modules=tuple(
            ModuleReserve(
                module=path,
                reserve=max(sizes[path]),
                num_empty=abs(sizes[path][0] - sizes[path][1]),
                in_new=sizes[path][1] < sizes[path][0],
            )
            for path in needed
        ),
        num_kept=len(best) - len(now),
        num_kept_tokens=_num_tokens(best) - _num_tokens(now),
    )
