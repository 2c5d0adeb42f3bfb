"""Members of collections: their encodings, and the layout of a prompt that has some.

A schema has a place for each collection, and no run of any member. `with_members` adds the runs and states of the
members that a prompt names, in its order. So the work does not grow with the collection. `member_encodings` has those
of all members, to encode them ahead of time.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

from promptcache.diagnostics import ContextLengthExceeded
from promptcache.language import (
    CheckedModule,
    CheckedSchema,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Member,
    Selection,
    join_path,
)
from promptcache.layout.encoding import Encoding, closed_up, positions_behind
from promptcache.layout.run_states import CollectionView, Visibility, find_state
from promptcache.layout.types import (
    Layout,
    LayoutLeaf,
    LayoutNode,
    LeafKind,
    Run,
    RunPiece,
    RunState,
    Slot,
    StateKind,
    TextGroup,
    TextPiece,
)
from promptcache.tokenizer import Before, Tokenizer


def with_members(
    selection: Selection, layout: Layout, states: Sequence[RunState], tokenizer: Tokenizer, codec: str = "full"
) -> tuple[Layout, tuple[RunState, ...]]:
    """Return layout and states with the runs of the members that a prompt names; the same if it names none.

    Args:
        selection: Its schema has these members (`CheckedSchema.with_members`).
        layout, states: Those of the schema without members.
        codec: The codec of the states.

    As for modules, a state behind stand-ins that needs more positions than the model has is left out.

    Raises:
        ContextLengthExceeded: A member alone needs more positions than the model has; names it.
    """
    named: dict[str, list[CheckedModule]] = {}
    for path in selection.modules:
        if (parent := path.rpartition("/")[0]) in layout.collections:
            named.setdefault(parent, []).append(selection.schema.modules[path])
    if not named:
        return layout, tuple(states)
    visibility = Visibility(layout)
    runs: list[Run] = []
    made: list[RunState] = []
    for path, members in named.items():
        contexts = _Contexts(visibility.of_collection(path), layout, states, codec)
        taken: set[tuple[int, int]] = set()
        for module in members:
            run = _run(module, len(layout.runs) + len(runs), tokenizer)
            runs.append(run)
            made += contexts.states_of(run, len(states) + len(made), taken)
    return _Extension(layout, selection, runs).layout(), (*states, *made)


def member_encodings(
    schema: CheckedSchema,
    members: Mapping[str, Mapping[str, Member]],
    layout: Layout,
    states: Sequence[RunState],
    tokenizer: Tokenizer,
    codec: str = "full",
) -> Iterator[tuple[str, Encoding]]:
    """Yield the path and the encodings of each member, as prompts use them that name it first or with few others.

    Args:
        schema, layout, states: As of `with_members`, without members.
        members: The members of each collection, by name. They may change meanwhile.
        codec: The codec of the states.

    Raises:
        ContextLengthExceeded: A member alone needs more positions than the model has; names it.
    """
    visibility = Visibility(layout)
    for path, own in members.items():
        contexts = _Contexts(visibility.of_collection(path), layout, states, codec)
        for name, member in tuple(own.items()):
            run = _run(schema.modules[path].member(name, member), len(layout.runs), tokenizer)
            for state in contexts.states_of(run, len(states), taken=set()):
                yield join_path(path, name), state.encoding


class _Contexts:
    """What the members of a collection attend to while they are encoded, as indices of states; and their states."""

    def __init__(self, seen: CollectionView, layout: Layout, states: Sequence[RunState], codec: str) -> None:
        self._max_positions = layout.max_positions or sys.maxsize
        self._states, self._codec = states, codec
        self._plain = tuple(_states_of(seen.plain, states, behind=False))
        self._before = tuple(_states_of(seen.before, states, behind=False))
        self._pairs = list(self._stand_ins(states)) if seen.uses_stand_ins else []
        self._behind = tuple(_states_of(seen.behind, states, behind=True))

    def _stand_ins(self, states: Sequence[RunState]) -> Iterator[tuple[int, int]]:
        """Yield the pairs of stand-ins of which each member has one."""
        stand_ins = [state for state in states if state.kind is StateKind.STAND_IN]
        first = {(*self._before, each.index): each.index for each in stand_ins if each.sees == self._before}
        for state in stand_ins:
            if state.sees in first:
                yield first[state.sees], state.index

    def states_of(self, run: Run, index: int, taken: set[tuple[int, int]]) -> Iterator[RunState]:
        """Yield the states of the next member of a prompt; it has a plain one first.

        Args:
            run: Of the member.
            index: Of its first state.
            taken: The stand-ins of the members before it in the prompt. Those of this one are added.

        Raises:
            ContextLengthExceeded: The member alone needs more positions than the model has.
        """
        plain = self._state(run, index, StateKind.PLAIN, self._plain)
        needed = plain.encoding.position_ids[-1] + 1
        if needed > self._max_positions:
            raise ContextLengthExceeded(
                f"member '{run.module}' needs {needed} positions, the model has {self._max_positions}: shorten its "
                "text, or make several members of it"
            )
        yield plain
        sees = (*self._before, *self._chosen(run.token_ids, taken), *self._behind)
        if sees != self._plain:
            state = self._state(run, index + 1, StateKind.BEHIND, sees)
            if state.encoding.position_ids[-1] < self._max_positions:
                yield state

    def _state(self, run: Run, index: int, kind: StateKind, sees: tuple[int, ...]) -> RunState:
        context = closed_up([self._states[each].encoding.whole for each in sees])
        token_ids = run.token_ids
        encoding = Encoding(
            token_ids=token_ids,
            position_ids=positions_behind(context, len(token_ids)),
            context=context,
            codec=self._codec,
        )
        return RunState(index=index, run=run.index, kind=kind, scaffolds=(), sees=sees, encoding=encoding)

    def _chosen(self, token_ids: tuple[int, ...], taken: set[tuple[int, int]]) -> tuple[int, ...]:
        """Return the stand-ins of a member: those that its text chooses, or the next that no other member has."""
        number = len(self._pairs)
        if len(taken) == number:
            taken.clear()
        digest = hashlib.sha256(array("q", token_ids).tobytes()).digest()
        start = int.from_bytes(digest[:8], "little") % max(1, number)
        order = (*self._pairs[start:], *self._pairs[:start])
        chosen = next((each for each in order if each not in taken), None)
        if chosen is None:
            return ()
        taken.add(chosen)
        return chosen


def _states_of(runs: Sequence[int], states: Sequence[RunState], *, behind: bool) -> Iterator[int]:
    """Yield the states of runs that have tokens and are cached."""
    for run in runs:
        state = find_state(states, run, None, behind=behind)
        if state is not None:
            yield state.index


class _Extension:
    """A layout with the runs of members; what stands behind them moves by their tokens."""

    def __init__(self, layout: Layout, selection: Selection, members: Sequence[Run]) -> None:
        self._layout, self._selection = layout, selection
        self._members: dict[str, list[Run]] = {}
        for run in members:
            self._members.setdefault(run.module.rpartition("/")[0], []).append(run)
        self._offset = 0
        self._pieces: dict[int, list[RunPiece]] = {}
        self._modules: dict[str, LayoutNode] = {}

    def layout(self) -> Layout:
        """Return the layout."""
        layout = self._layout
        tree = tuple(map(self._moved, layout.tree))
        members = [run for own in self._members.values() for run in own]
        runs = tuple(replace(run, pieces=tuple(self._pieces[run.index])) for run in (*layout.runs, *members))
        return replace(
            layout,
            schema=self._selection.schema,
            tree=tree,
            modules=self._modules,
            runs=runs,
            runs_of={**layout.runs_of, **{run.module: (run.index,) for run in members}},
            stop=max(run.stop for run in runs),
        )

    def _moved(self, node: LayoutNode | LayoutLeaf) -> LayoutNode | LayoutLeaf:
        if isinstance(node, LayoutLeaf):
            return self._leaf(node.kind, node.run, node.piece)
        start, item = node.start + self._offset, node.item
        children = [self._moved(child) for child in node.children]
        if isinstance(item, CheckedModule) and item.path in self._members:
            item = self._selection.schema.modules[item.path]
            children = [self._member(run, node.start) for run in self._members[item.path]]
        return self._node(item, start, node.stop + self._offset, children)

    def _member(self, run: Run, start: int) -> LayoutNode:
        """Place a member behind those before it; `start` is that of its collection in the layout without members."""
        (piece,) = run.pieces
        leaf = self._leaf(LeafKind.TEXT, run.index, replace(piece, start=start))
        self._offset += len(run.token_ids)
        return self._node(self._selection.schema.modules[run.module], leaf.start, leaf.stop, [leaf])

    def _node(
        self,
        item: CheckedModule | CheckedUnion | CheckedTurn,
        start: int,
        stop: int,
        children: Sequence[LayoutNode | LayoutLeaf],
    ) -> LayoutNode:
        node = LayoutNode(item=item, start=start, stop=stop, children=tuple(children))
        if isinstance(item, CheckedModule):
            self._modules[item.path] = node
        return node

    def _leaf(self, kind: LeafKind, run: int, piece: RunPiece) -> LayoutLeaf:
        if self._offset and isinstance(piece, Slot):
            piece = replace(piece, start=piece.start + self._offset, stop=piece.stop + self._offset)
        elif self._offset:
            piece = replace(piece, start=piece.start + self._offset)
        self._pieces.setdefault(run, []).append(piece)
        return LayoutLeaf(kind=kind, run=run, piece=piece)


def _run(module: CheckedModule, index: int, tokenizer: Tokenizer) -> Run:
    text = "".join(item.text for item in module.children if isinstance(item, FinalText))
    piece = TextPiece(start=0, token_ids=_tokens(cast("Hashable", tokenizer), text), text=text, span=module.span)
    ending = TextGroup(texts=(text,), before=Before.TEXT)
    return Run(index=index, module=module.path, pieces=(piece,), cached=True, ending=ending)


@lru_cache(maxsize=4096)
def _tokens(tokenizer: Any, text: str) -> tuple[int, ...]:
    token_ids: tuple[int, ...]
    (token_ids,) = tokenizer.tokenize_parts([text], Before.TEXT)
    return token_ids
