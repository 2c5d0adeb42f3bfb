"""Members of collections: their encodings, and the layout of a prompt that has some.

A schema has a place for each collection, and no run of any member. `with_members` adds the runs and states of the
members that a prompt names, in its order. So the work does not grow with the collection. `member_encodings` has those
of all members, to encode them ahead of time.
"""

from __future__ import annotations

import sys
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
from promptcache.layout.run_states import Visibility, find_state
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
        maker = _Members(visibility.of_collection(path), layout, states, codec)
        for module in members:
            run = _run(module, len(layout.runs) + len(runs), tokenizer)
            runs.append(run)
            made.append(maker.state(run, len(states) + len(made)))
    return _Extension(layout, selection, runs).layout(), (*states, *made)


def member_encodings(
    schema: CheckedSchema,
    members: Mapping[str, Mapping[str, Member]],
    layout: Layout,
    states: Sequence[RunState],
    tokenizer: Tokenizer,
    codec: str = "full",
) -> Iterator[tuple[str, Encoding]]:
    """Yield the path and the encoding of each member, as prompts use it that name it first.

    Args:
        schema, layout, states: As of `with_members`, without members.
        members: The members of each collection, by name. They may change meanwhile.
        codec: The codec of the states.

    Raises:
        ContextLengthExceeded: A member alone needs more positions than the model has; names it.
    """
    visibility = Visibility(layout)
    for path, own in members.items():
        maker = _Members(visibility.of_collection(path), layout, states, codec)
        for name, member in tuple(own.items()):
            run = _run(schema.modules[path].member(name, member), len(layout.runs), tokenizer)
            yield join_path(path, name), maker.state(run, len(states)).encoding


class _Members:
    """Builder of the states of members of one collection, which all have the same context."""

    def __init__(self, context: Sequence[int], layout: Layout, states: Sequence[RunState], codec: str) -> None:
        found = (find_state(states, run, None) for run in context)
        seen = [state for state in found if state is not None]  # runs that have tokens and are cached
        self._sees = tuple(state.index for state in seen)
        self._context = closed_up([state.encoding.whole for state in seen])
        self._max_positions = layout.max_positions or sys.maxsize
        self._codec = codec

    def state(self, run: Run, index: int) -> RunState:
        """Return the state of a member.

        Args:
            run: Of the member.
            index: Of the state.

        Raises:
            ContextLengthExceeded: The member alone needs more positions than the model has.
        """
        places = positions_behind(self._context, len(run.token_ids))
        needed = places[-1] + 1
        if needed > self._max_positions:
            raise ContextLengthExceeded(
                f"member '{run.module}' needs {needed} positions, the model has {self._max_positions}: shorten its "
                "text, or make several members of it"
            )
        encoding = Encoding(token_ids=run.token_ids, position_ids=places, context=self._context, codec=self._codec)
        return RunState(
            index=index, run=run.index, kind=StateKind.PLAIN, scaffolds=(), sees=self._sees, encoding=encoding
        )


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
