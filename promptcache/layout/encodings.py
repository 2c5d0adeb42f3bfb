"""Layout to encodings: what is computed once for every cached run, and what each may see.

Comes in: a layout. Goes out: encodings in an order in which contexts come first: by run, a run's plain state before its
scaffold states. This file does not know how an encoding is computed or kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from promptcache.language.checked import CheckedScaffold
from promptcache.language.schema import Context
from promptcache.layout.scaffolds import covered_modules
from promptcache.layout.types import Encoding, Layout, Run, Stretch


def encodings(layout: Layout) -> tuple[Encoding, ...]:
    """Return every encoding of a schema: each cached run's plain state, and its state in each scaffold covering it.

    A run without a single token while encoding (slots that nothing fills) has no encoding. A scaffold state equal to
    the plain one – nothing more to see – is the plain one, and two scaffolds may share a state.
    """
    maker = _Maker(len(layout.runs))
    visibility = _Visibility(layout)
    scaffolds = _covering_scaffolds(layout)
    for run in layout.runs:
        if run.cached:
            maker.add_plain(run, visibility.plain(run))
            for scaffold in scaffolds.get(run.module, ()):
                maker.add_scaffold(run, scaffold.name, visibility.before(run, visibility.runs_of(scaffold.guaranteed)))
    return tuple(maker.encodings)


def find_encoding(encodings: Sequence[Encoding], run: int, scaffold: str | None) -> Encoding | None:
    """Return the encoding that serves a run while `scaffold` is in use there, or None if the run has no tokens.

    Args:
        encodings: What `encodings` returned, in its order.
        run: Index of a cached run.
        scaffold: Name of the scaffold that `scaffolds_in_use` gives for the run's module.
    """
    plain = index = bisect_left(encodings, run, key=attrgetter("run"))
    if plain == len(encodings) or encodings[plain].run != run:
        return None
    while scaffold is not None and index < len(encodings) and encodings[index].run == run:
        if scaffold in encodings[index].scaffolds:
            return encodings[index]
        index += 1
    return encodings[plain]


_NONE = -1  # in place of an index: the run has no encoding, being without tokens or not cached


class _Maker:
    """Collects encodings and knows the states of every run so far."""

    def __init__(self, num_runs: int) -> None:
        self.encodings: list[Encoding] = []
        self._plain = [_NONE] * num_runs
        self._scaffold: dict[str, dict[int, int]] = {}
        self._contexts: dict[tuple[int, ...], tuple[int, ...]] = {}

    def add_plain(self, run: Run, visible: Sequence[int]) -> None:
        """Add the plain state of `run`, which sees the plain states of the runs `visible`."""
        context = _without_none(tuple(map(self._plain.__getitem__, visible)))
        if any(_tokens(run)):
            self._plain[run.index] = self._add(run, (), context)

    def add_scaffold(self, run: Run, scaffold: str, visible: Sequence[int]) -> None:
        """Add a scaffold state of `run`, which sees the states in that scaffold, unless there is the same state."""
        plain = self._plain[run.index]
        if plain == _NONE:
            return
        states = self._scaffold.setdefault(scaffold, {})
        context = _without_none(tuple(states.get(index, self._plain[index]) for index in visible))
        for state in self.encodings[plain:]:  # all of this run
            if state.context == context:
                states[run.index] = state.index
                if state.index != plain:
                    self.encodings[state.index] = replace(state, scaffolds=(*state.scaffolds, scaffold))
                return
        states[run.index] = self._add(run, (scaffold,), context)

    def _add(self, run: Run, scaffolds: tuple[str, ...], context: tuple[int, ...]) -> int:
        token_ids, position_ids = _tokens(run)
        encoding = Encoding(
            index=len(self.encodings),
            run=run.index,
            scaffolds=scaffolds,
            token_ids=token_ids,
            position_ids=position_ids,
            context=self._contexts.setdefault(context, context),
        )
        self.encodings.append(encoding)
        return encoding.index


class _Visibility:
    """Says for a run which runs lie before it and may be seen, as far as they have encodings."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stops = [run.stop for run in layout.runs]
        self._runs_of: dict[frozenset[str], list[int]] = {}

    def plain(self, run: Run) -> list[int]:
        """Return what `run` sees outside scaffolds: all that is guaranteed with it, or only its module's own."""
        schema, path = self._layout.schema, run.module
        context = schema.modules[path].context if path else schema.source.context
        if context is Context.GUARANTEED:
            return self.before(run, self.runs_of(schema.guaranteed[path]))
        bos = [0] if self._layout.has_bos and path else []
        return self.before(run, [*bos, *self._layout.runs_of[path]])

    def before(self, run: Run, visible: list[int]) -> list[int]:
        """Return those of the sorted indices `visible` that lie before `run`."""
        stops, start = self._stops, run.start
        earlier = visible[: bisect_left(visible, run.index)]
        if max(map(stops.__getitem__, earlier), default=start) <= start:
            return earlier
        return [index for index in earlier if stops[index] <= start]  # what no valid prompt has may overlap

    def runs_of(self, modules: frozenset[str]) -> list[int]:
        """Return, sorted, the runs of `modules` and of the root."""
        runs = self._runs_of.get(modules)
        if runs is None:
            own = (self._layout.runs_of[path] for path in modules | {""})
            runs = self._runs_of[modules] = sorted(chain.from_iterable(own))
        return runs


def _without_none(indices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(index for index in indices if index != _NONE) if _NONE in indices else indices


def _covering_scaffolds(layout: Layout) -> dict[str, list[CheckedScaffold]]:
    """Return for every covered module the scaffolds that cover it, in declared order."""
    scaffolds: dict[str, list[CheckedScaffold]] = {}
    for scaffold in layout.schema.scaffolds:
        for path in covered_modules(scaffold, scaffold.guaranteed):
            scaffolds.setdefault(path, []).append(scaffold)
    return scaffolds


def _tokens(run: Run) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that are encoded for a run, fillers included, and their positions."""
    token_ids: list[int] = []
    position_ids: list[int] = []
    for piece in run.pieces:
        piece_ids = piece.token_ids if isinstance(piece, Stretch) else piece.filler_ids
        token_ids.extend(piece_ids)
        position_ids.extend(range(piece.start, piece.start + len(piece_ids)))
    return tuple(token_ids), tuple(position_ids)
