"""Compute the states of a layout's runs: the encodings of every cached run, with their contexts.

States are in layout order, so every context precedes the encodings that use it. The plain state of a run precedes
its scaffold states.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from promptcache.language import CheckedScaffold, Context, Placement
from promptcache.layout.encoding import Encoding, KVPart, closed_up
from promptcache.layout.scaffolds import covered_modules
from promptcache.layout.types import Layout, Run, RunState


def run_states(layout: Layout, codec: str = "full") -> tuple[RunState, ...]:
    """Return the states of a schema's runs.

    Each cached run has a plain state, and one state for each scaffold that covers it. A run without tokens (slots
    without fillers) has no state. If a scaffold state has the same context as the plain state, both are one state.
    Scaffolds may share a state.

    With fixed positions, a run is encoded at its places in the layout. With closed positions, it is encoded directly
    behind its context, and its context has no gaps.
    """
    maker = _Maker(len(layout.runs), codec, is_closed=layout.placement is Placement.CLOSED)
    visibility = _Visibility(layout)
    scaffolds = _covering_scaffolds(layout)
    for run in layout.runs:
        if run.cached:
            maker.add_plain(run, visibility.plain(run))
            for scaffold in scaffolds.get(run.module, ()):
                maker.add_scaffold(run, scaffold.name, visibility.before(run, visibility.runs_of(scaffold.guaranteed)))
    return tuple(maker.states)


def find_state(states: Sequence[RunState], run: int, scaffold: str | None) -> RunState | None:
    """Return the state of a run while `scaffold` is in use, or None if the run has no tokens.

    Args:
        states: The result of `run_states`.
        run: Index of a cached run.
        scaffold: The scaffold in use for the run's module, from `scaffolds_in_use`.
    """
    plain = index = bisect_left(states, run, key=attrgetter("run"))
    if plain == len(states) or states[plain].run != run:
        return None
    while scaffold is not None and index < len(states) and states[index].run == run:
        if scaffold in states[index].scaffolds:
            return states[index]
        index += 1
    return states[plain]


_NONE = -1  # index of a run without a state: it has no tokens, or is not cached


class _Maker:
    """Builder of the states of all runs."""

    def __init__(self, num_runs: int, codec: str, *, is_closed: bool) -> None:
        self.states: list[RunState] = []
        self._is_closed = is_closed
        self._codec = codec
        self._plain = [_NONE] * num_runs
        self._scaffold: dict[str, dict[int, int]] = {}
        self._contexts: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[KVPart, ...]]] = {}

    def add_plain(self, run: Run, visible: Sequence[int]) -> None:
        """Add the plain state of `run`, with the plain states of the runs `visible` as context."""
        sees = _without_none(tuple(map(self._plain.__getitem__, visible)))
        if run.token_ids:
            self._plain[run.index] = self._add(run, (), sees)

    def add_scaffold(self, run: Run, scaffold: str, visible: Sequence[int]) -> None:
        """Add a scaffold state of `run`, with the states of that scaffold as context, unless an equal state exists."""
        plain = self._plain[run.index]
        if plain == _NONE:
            return
        in_scaffold = self._scaffold.setdefault(scaffold, {})
        sees = _without_none(tuple(in_scaffold.get(index, self._plain[index]) for index in visible))
        for state in self.states[plain:]:  # the states of this run
            if state.sees == sees:
                in_scaffold[run.index] = state.index
                if state.index != plain:
                    self.states[state.index] = replace(state, scaffolds=(*state.scaffolds, scaffold))
                return
        in_scaffold[run.index] = self._add(run, (scaffold,), sees)

    def _add(self, run: Run, scaffolds: tuple[str, ...], sees: tuple[int, ...]) -> int:
        token_ids = run.token_ids
        known = self._contexts.get(sees)  # share one tuple among equal contexts
        if known is None:
            known = self._contexts[sees] = sees, self._context(sees)
        sees, context = known
        position_ids = run.places
        if self._is_closed:
            start = context[-1].last + 1 if context else 0
            position_ids = tuple(range(start, start + len(token_ids)))
        encoding = Encoding(token_ids=token_ids, position_ids=position_ids, context=context, codec=self._codec)
        index = len(self.states)
        self.states.append(RunState(index=index, run=run.index, scaffolds=scaffolds, sees=sees, encoding=encoding))
        return index

    def _context(self, sees: tuple[int, ...]) -> tuple[KVPart, ...]:
        """Return the whole encodings of states: where they are encoded, or closed up."""
        parts = [self.states[index].encoding.whole for index in sees]
        return closed_up(parts) if self._is_closed else tuple(parts)


class _Visibility:
    """Earlier runs that each run attends to."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stops = [run.stop for run in layout.runs]
        self._runs_of: dict[frozenset[str], list[int]] = {}

    def plain(self, run: Run) -> list[int]:
        """Return the context of `run` outside scaffolds: the guaranteed runs, or only those of its own module."""
        schema, path = self._layout.schema, run.module
        context = schema.modules[path].context if path else schema.source.context
        if context is Context.GUARANTEED:
            return self.before(run, self.runs_of(schema.guaranteed[path]))
        bos = [0] if self._layout.has_bos and path else []
        return self.before(run, [*bos, *self._layout.runs_of[path]])

    def before(self, run: Run, visible: list[int]) -> list[int]:
        """Return the runs of the sorted indices `visible` that end before `run` starts."""
        stops, start = self._stops, run.start
        earlier = visible[: bisect_left(visible, run.index)]
        if max(map(stops.__getitem__, earlier), default=start) <= start:
            return earlier
        return [index for index in earlier if stops[index] <= start]  # alternatives of a union may overlap

    def runs_of(self, modules: frozenset[str]) -> list[int]:
        """Return the sorted runs of `modules` and of the root."""
        runs = self._runs_of.get(modules)
        if runs is None:
            own = (self._layout.runs_of[path] for path in modules | {""})
            runs = self._runs_of[modules] = sorted(chain.from_iterable(own))
        return runs


def _without_none(indices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(index for index in indices if index != _NONE) if _NONE in indices else indices


def _covering_scaffolds(layout: Layout) -> dict[str, list[CheckedScaffold]]:
    """Return the scaffolds that cover each module, in declared order."""
    scaffolds: dict[str, list[CheckedScaffold]] = {}
    for scaffold in layout.schema.scaffolds:
        for path in covered_modules(scaffold, scaffold.guaranteed):
            scaffolds.setdefault(path, []).append(scaffold)
    return scaffolds
