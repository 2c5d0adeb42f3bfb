"""Layout to boxes and marks: a walk over the schema in document order, beside the pieces that it was laid out as.

Comes in: a layout, its encodings, perhaps a plan. Goes out: one box with everything in it. This file knows positions,
no pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from promptcache.language.checked import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion, FinalText
from promptcache.language.schema import Parameter
from promptcache.layout.picture.in_use import InUse
from promptcache.layout.picture.notes import Notes, gap, positions
from promptcache.layout.picture.parts import Box, BoxKind, Covers, Mark, MarkKind, Part
from promptcache.layout.picture.request import MAX_LABEL, request_box
from promptcache.layout.types import Layout, Piece, Plan, Run, RunState, Slot, Stretch


def measure(layout: Layout, states: Sequence[RunState], plan: Plan | None, token_bytes: int | None) -> Box:
    """Return everything that a picture of `layout` shows, as one box.

    Args:
        layout: What is drawn.
        states: What `run_states(layout)` returned: they say what each run may see.
        plan: Of a prompt against this layout; None draws the layout alone.
        token_bytes: KV of one token, where it is to be told.
    """
    notes = Notes(layout, states, token_bytes)
    walk = _Walk(layout, InUse(plan), notes)
    rows = [tuple(walk.all())]
    if plan is not None:
        rows.append((request_box(plan, notes),))
    stop = max((part.stop for row in rows for part in row), default=layout.stop)
    return Box(kind=BoxKind.SCHEMA, start=0, stop=max(stop, 1), rows=tuple(rows))


class _Walk:
    """Walks the checked schema and takes the pieces of the layout one after another."""

    def __init__(self, layout: Layout, in_use: InUse, notes: Notes) -> None:
        self._layout = layout
        self._in_use = in_use
        self._notes = notes
        self._pieces = [(run, piece) for run in layout.runs for piece in run.pieces]
        self._next = 0
        self._num_slots = 0
        self._num_modules = 0

    def all(self) -> Iterator[Part]:
        """Yield the parts of the schema, BOS first."""
        if self._layout.has_bos:
            yield self._stretch("BOS, the start of every prompt", is_frame=True)
        yield from self._items(self._layout.schema.children, "")
        assert self._next == len(self._pieces), "every piece is drawn"

    def _items(self, items: Sequence[CheckedItem], owner: str) -> Iterator[Part]:
        for item in items:
            match item:
                case CheckedModule():
                    yield self._module(item)
                case CheckedUnion():
                    yield self._union(item)
                case CheckedTurn():
                    yield from self._turn(item, owner)
                case Parameter():
                    yield self._slot()
                case FinalText():
                    piece = self._peek()
                    if isinstance(piece, Stretch) and (piece.span, piece.text) == (item.span, item.text):
                        yield self._stretch()

    def _module(self, module: CheckedModule) -> Box:
        extent = self._layout.extents[module.path]
        index, present = self._num_modules, self._in_use.has(module.path)
        self._num_modules += 1
        parts = list(self._items(module.children, module.path))
        stop = max((part.stop for part in parts), default=extent.start)
        if stop < extent.stop:
            parts.append(_gap(stop, extent.stop, f"reserve of module {module.path}", present=present))
        name = module.path.rpartition("/")[2]
        facts = {"required": module.required, "not cached": not module.cache}
        tags = [tag for tag, holds in facts.items() if holds]
        return Box(
            kind=BoxKind.MODULE,
            start=extent.start,
            stop=extent.stop,
            rows=(tuple(parts),),
            labels=(" · ".join([name, *tags]), name) if tags else (name,),
            notes=self._notes.module(module, present=present),
            covers=Covers(modules=range(index, index + 1)),
            present=present,
        )

    def _union(self, union: CheckedUnion) -> Box:
        members = [self._module(member) for member in union.members]
        start, stop = members[0].start, max(member.stop for member in members)
        present = any(member.present for member in members)
        name = f"union {union.name}" if union.name else "union"
        chosen = "exactly one" if union.required or union.default is not None else "at most one"
        default = f", default {union.default}" if union.default is not None else ""
        why = f"{name} is as long as its longest member"
        rows = (
            (member, *([_gap(member.stop, stop, why, present=member.present)] if member.stop < stop else ()))
            for member in members
        )
        return Box(
            kind=BoxKind.UNION,
            start=start,
            stop=stop,
            rows=tuple(rows),
            labels=(f"{name} · {chosen} of {len(members)}", name),
            notes=(f"{name}: {chosen} of {len(members)} members{default}", positions(start, stop)),
            present=present,
        )

    def _turn(self, turn: CheckedTurn, owner: str) -> Iterator[Box]:
        """Yield a turn; one without anything in it takes no place."""
        header = self._frame(turn, "header")
        parts = list(chain(header, self._items(turn.children, owner)))
        if not turn.open:
            parts.extend(self._frame(turn, "footer"))
        if parts:
            start, stop = parts[0].start, max(part.stop for part in parts)
            state = "open: the prompt continues and closes it" if turn.open else "closed"
            yield Box(
                kind=BoxKind.TURN,
                start=start,
                stop=stop,
                rows=(tuple(parts),),
                labels=(f"{turn.role} turn{' · open' if turn.open else ''}", str(turn.role)),
                notes=(f"{turn.role} turn, {state}", positions(start, stop)),
                present=self._in_use.has(owner),
            )

    def _frame(self, turn: CheckedTurn, name: str) -> list[Mark]:
        piece = self._peek()
        if isinstance(piece, Stretch) and piece.span == turn.span:
            return [self._stretch(f"{name} of the {turn.role} turn", is_frame=True)]
        return []

    def _stretch(self, what: str = "", *, is_frame: bool = False) -> Mark:
        run, piece = self._take()
        assert isinstance(piece, Stretch), "a text is laid out as a stretch"
        sections = self._in_use.sections(run, piece, is_frame=is_frame)
        return Mark(
            kind=MarkKind.TEXT,
            start=piece.start,
            stop=piece.stop,
            labels=(piece.text.strip()[:MAX_LABEL],),
            notes=self._notes.stretch(run, piece, what, sections),
            sections=sections,
            covers=Covers(runs=range(run.index, run.index + 1)),
            present=self._in_use.has(run.module),
        )

    def _slot(self) -> Mark:
        run, piece = self._take()
        assert isinstance(piece, Slot), "a parameter is laid out as a slot"
        index, sections = self._num_slots, self._in_use.sections(run, piece)
        self._num_slots += 1
        argument = self._in_use.argument(piece)
        labels = [] if argument is None else [f"{piece.parameter}: {argument[:MAX_LABEL]}"]
        return Mark(
            kind=MarkKind.SLOT,
            start=piece.start,
            stop=piece.stop,
            labels=(*labels, piece.parameter),
            notes=self._notes.slot(run, piece, sections, argument),
            sections=sections,
            covers=Covers(runs=range(run.index, run.index + 1), slots=range(index, index + 1)),
            present=self._in_use.has(run.module),
        )

    def _peek(self) -> Piece | None:
        return self._pieces[self._next][1] if self._next < len(self._pieces) else None

    def _take(self) -> tuple[Run, Piece]:
        taken = self._pieces[self._next]
        self._next += 1
        return taken


def _gap(start: int, stop: int, why: str, *, present: bool) -> Mark:
    return Mark(kind=MarkKind.GAP, start=start, stop=stop, notes=gap(start, stop, why), present=present)
