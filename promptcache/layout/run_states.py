"""Compute the states of a layout's runs: the encodings of every cached run, with their contexts.

States are in layout order, so every context precedes the encodings that use it. The plain state of a run precedes
its scaffold states.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedScaffold,
    CheckedTurn,
    CheckedUnion,
    Context,
    Placement,
    Sees,
    walk_checked,
)
from promptcache.layout.encoding import Encoding, KVPart, closed_up, positions_behind
from promptcache.layout.scaffolds import covered_modules, lineage
from promptcache.layout.stand_ins import num_before
from promptcache.layout.types import Layout, Run, RunState, StateKind, TextPiece

MAX_EARLIER_TOKENS = 512
"""Limit of the tokens of earlier modules that a run with `sees="earlier"` attends to."""


def run_states(layout: Layout, codec: str = "full") -> tuple[RunState, ...]:
    """Return the states of a schema's runs.

    Each cached run has a plain state, and one state for each scaffold that covers it. A run of a module may also have
    a state behind stand-ins or earlier modules. A run without tokens (slots without fillers) has no state. States of a
    run with the same context are one state. States behind the selected module before it are not among them: they
    depend on the prompt (`states_in_use`).

    With fixed positions, a run is encoded at its places in the layout. With closed positions, it is encoded directly
    behind its context, and its context has no gaps.
    """
    maker = _Maker(layout, codec)
    visibility = Visibility(layout)
    scaffolds = _covering_scaffolds(layout)
    for run in layout.runs:
        if run.cached:
            visible = visibility.plain(run)
            maker.add_plain(run, visible)
            if run.module and not sees_previous(layout, run):
                maker.add_behind(run, *visibility.behind(run, visible))
            for scaffold in scaffolds.get(run.module, ()):
                maker.add_scaffold(run, scaffold.name, visibility.before(run, visibility.runs_of(scaffold.guaranteed)))
    for path in layout.collections:
        maker.add_stand_ins(visibility.of_collection(path), max(0, len(layout.runs) - 1))
    return tuple(maker.states)


def runs_in_use(layout: Layout, modules: Iterable[str]) -> list[Run]:
    """Return the runs of the root and of the modules of a prompt, in document order.

    Runs of members of a collection, which have the highest indices, come behind the runs before the collection.
    """

    def place_in_document(run: int) -> tuple[int, int, int]:
        num_before = layout.collections.get(layout.runs[run].module.rpartition("/")[0])
        return (run, 1, 0) if num_before is None else (num_before, 0, run)

    indices = (index for path in ("", *modules) for index in layout.runs_of[path])
    return [layout.runs[index] for index in sorted(indices, key=place_in_document if layout.collections else None)]


def states_in_use(
    layout: Layout, runs: Iterable[Run], states: Sequence[RunState], scaffolds: Mapping[str, str]
) -> Iterator[tuple[Run, RunState | None]]:
    """Yield the runs of a prompt with the state that each is used in; None if it is not cached, or has no tokens.

    A run is used in its plain state if that attended to exactly the runs in use before it. Otherwise it is used behind
    stand-ins or earlier modules, if it has such a state, or behind the module before it in the prompt.

    Args:
        layout: The layout of the states.
        runs: In document order.
        states: The result of `run_states`.
        scaffolds: The scaffold in use for each module that has one, from `scaffolds_in_use`.
    """
    used: list[int] = []
    plain: list[RunState] = []  # of the runs in use so far
    is_exact = True
    for run in runs:
        if (own := find_state(states, run.index, None) if run.cached else None) is None:
            is_exact = is_exact and run.cached
            yield run, None
            continue
        scaffold = scaffolds.get(run.module)
        state = own if scaffold is None else find_state(states, run.index, scaffold)
        assert state is not None, "a run with a plain state has one in each scaffold"
        is_exact = is_exact and state.sees == tuple(used)
        if scaffold is None and not is_exact:
            if sees_previous(layout, run):
                state = _behind_previous(layout, run, own, plain)
            else:
                state = find_state(states, run.index, None, behind=True)
                assert state is not None, "it has a plain state"
        used.append(state.index)
        plain.append(own)
        yield run, state


def _behind_previous(layout: Layout, run: Run, own: RunState, before: Sequence[RunState]) -> RunState:
    """Return the state of a run behind the last run before it in a prompt that its plain state does not attend to.

    Private modules, and members of collections with stand-ins, are passed over. The context are the runs of both plain
    states, and that run. The plain state is
    returned if there is no such run, or if the model has not enough positions.

    Args:
        own: The plain state of the run.
        before: The plain states of the runs in use before it.
    """
    previous = next(
        (
            each
            for each in reversed(before)
            if each.index not in own.sees and may_be_previous(layout, layout.runs[each.run], run)
        ),
        None,
    )
    if previous is None:
        return own
    wanted = {*own.sees, *previous.sees, previous.index}
    seen = [each for each in before if each.index in wanted]
    context, places = tuple(each.encoding.whole for each in seen), run.places
    if layout.placement is Placement.CLOSED:
        context = closed_up(context)
        places = positions_behind(context, len(places))
        if layout.max_positions is not None and places[-1] >= layout.max_positions:
            return own
    encoding = replace(own.encoding, position_ids=places, context=context)
    sees = tuple(each.index for each in seen)
    return RunState(index=_NONE, run=run.index, kind=StateKind.BEHIND, scaffolds=(), sees=sees, encoding=encoding)


def sees_previous(layout: Layout, run: Run) -> bool:
    """Whether a run is encoded behind the module before it in a prompt."""
    if not run.module:
        return False
    module = layout.schema.modules[run.module]
    return module.sees is Sees.PREVIOUS and module.context is Context.GUARANTEED


def may_be_previous(layout: Layout, other: Run, run: Run) -> bool:
    """Whether `other` counts as the one before `run`: not if it is private, unless `run` is inside of it.

    Members of collections count if they see the previous one, too. Members with stand-ins come in any order, so that
    the pairs would be too many.
    """
    path, modules = other.module, layout.schema.modules
    if path.rpartition("/")[0] in layout.collections and modules[path].sees is not Sees.PREVIOUS:
        return False
    return all(f"{run.module}/".startswith(f"{each}/") for each in lineage(path) if modules[each].private)


class Pair(NamedTuple):
    """An encoding of the module `path` behind the module `previous`."""

    path: str
    previous: str
    encoding: Encoding


def pair_encodings(layout: Layout, states: Sequence[RunState], modules: Container[str] | None = None) -> Iterator[Pair]:
    """Yield the encodings of each module behind each module that may be the one before it in a prompt.

    These are all that prompts without members of collections use of modules with `sees="previous"`, besides `states`.
    Modules that a rule forbids together are not left out.

    Args:
        states: The result of `run_states(layout)`.
        modules: Paths of the modules that both are of; None means all.
    """
    schema = layout.schema
    plain = [
        (run, state) for run in layout.runs if run.cached and (state := find_state(states, run.index, None)) is not None
    ]
    states_of: dict[str, list[RunState]] = {}
    for run, state in plain:
        states_of.setdefault(run.module, []).append(state)
    together = {
        path: [each for other in (path, *schema.guaranteed[path]) for each in states_of.get(other, ())]
        for path in states_of
    }
    for number, (run, own) in enumerate(plain):
        if not sees_previous(layout, run) or (modules is not None and run.module not in modules):
            continue
        before = {state.index: state for other, state in plain[:number] if other.stop <= run.start}
        others = {
            index
            for index in before.keys() - set(own.sees)
            if may_be_previous(layout, layout.runs[before[index].run], run)
        }
        for index in sorted(others):
            previous = before[index]
            path = previous.module(layout)
            if modules is not None and path not in modules:
                continue
            if all(each.index <= index or each.index not in others for each in together[path]):
                seen = sorted({*own.sees, *previous.sees, index})
                behind = _behind_previous(layout, run, own, [before[each] for each in seen]).encoding
                yield Pair(run.module, path, behind)


def find_state(states: Sequence[RunState], run: int, scaffold: str | None, *, behind: bool = False) -> RunState | None:
    """Return the state of a run while `scaffold` is in use, or None if the run has no tokens.

    Args:
        states: The result of `run_states`.
        run: Index of a cached run.
        scaffold: The scaffold in use for the run's module, from `scaffolds_in_use`.
        behind: Without a scaffold, return the state behind stand-ins or earlier modules, if there is one.
    """
    plain = bisect_left(states, run, key=attrgetter("run"))
    while plain < len(states) and states[plain].run == run and states[plain].kind is StateKind.STAND_IN:
        plain += 1  # those of a collection may stand behind a run without a state
    if plain == len(states) or states[plain].run != run:
        return None
    index = plain
    while index < len(states) and (state := states[index]).run == run:
        if (scaffold in state.scaffolds) if scaffold is not None else (behind and state.kind is StateKind.BEHIND):
            return state
        index += 1
    return states[plain]


_NONE = -1  # index of a state that there is not: a run has no tokens, or is not cached, or a prompt made it


class _Maker:
    """Builder of the states of all runs."""

    def __init__(self, layout: Layout, codec: str) -> None:
        self.states: list[RunState] = []
        self._is_closed = layout.placement is Placement.CLOSED
        self._codec = codec
        self._texts = layout.stand_ins
        self._max_positions = layout.max_positions
        self._stand_ins: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}  # by states before them, and text
        self._plain = [_NONE] * len(layout.runs)
        self._behind: dict[int, int] = {}
        self._scaffold: dict[str, dict[int, int]] = {}
        self._contexts: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[KVPart, ...]]] = {}

    def add_plain(self, run: Run, visible: Sequence[int]) -> None:
        """Add the plain state of `run`, with the plain states of the runs `visible` as context."""
        sees = _without_none(tuple(map(self._plain.__getitem__, visible)))
        if run.token_ids:
            self._plain[run.index] = self._add(run.index, StateKind.PLAIN, sees, run.token_ids, run.places)

    def add_behind(self, run: Run, num_stand_ins: int, visible: Sequence[int], first: int) -> None:
        """Add the state of `run` behind stand-ins and the runs `visible`, unless it is the plain state.

        Args:
            num_stand_ins: Number of stand-ins that it attends to.
            visible: Runs that it attends to.
            first: Stand-ins are before this run. The runs from it on are seen behind stand-ins, too.
        """
        plain = self._plain[run.index]
        if plain == _NONE:
            return
        texts = self._texts[:num_stand_ins]
        num_tokens = sum(map(len, texts)) + self._num_tokens([*visible, run.index])
        if self._max_positions is not None and num_tokens > self._max_positions:
            return
        before = _without_none(tuple(self._plain[index] for index in visible if index < first))
        others = [self._behind.get(index, self._plain[index]) for index in visible if index >= first]
        sees = _without_none((*before, *self._stand_ins_behind(before, num_stand_ins, run.index), *others))
        if sees != self.states[plain].sees:
            self._behind[run.index] = self._add(run.index, StateKind.BEHIND, sees, run.token_ids, run.places)

    def add_stand_ins(self, seen: CollectionView, run: int) -> None:
        """Add the stand-ins before members of a collection that do not exist yet, as states of `run`.

        A member attends to two texts that stand one behind the other in the list of all, from any of them on. Those are
        left out that need more positions than the model has.
        """
        if not seen.uses_stand_ins:
            return
        before = _without_none(tuple(self._plain[index] for index in seen.before))
        room = sys.maxsize if self._max_positions is None else self._max_positions - self._num_tokens(seen.before)
        for text, following in zip(self._texts, (*self._texts[1:], *self._texts[:1]), strict=True):
            if len(text) + len(following) <= room:
                first = self._stand_in(before, text, run)
                self._stand_in((*before, first), following, run)

    def _stand_ins_behind(self, before: tuple[int, ...], number: int, run: int) -> list[int]:
        """Return the first stand-ins behind the states `before`."""
        found: list[int] = []
        for text in self._texts[:number]:
            found.append(self._stand_in((*before, *found), text, run))
        return found

    def _stand_in(self, sees: tuple[int, ...], text: tuple[int, ...], run: int) -> int:
        """Return the stand-in with this text behind these states; a new one is a state of `run`."""
        found = self._stand_ins.get((sees, text))
        if found is None:
            found = self._stand_ins[sees, text] = self._add(run, StateKind.STAND_IN, sees, text, ())
        return found

    def _num_tokens(self, runs: Iterable[int]) -> int:
        plain = (self._plain[index] for index in runs)
        return sum(self.states[state].encoding.num_tokens for state in plain if state != _NONE)

    def add_scaffold(self, run: Run, scaffold: str, visible: Sequence[int]) -> None:
        """Add a scaffold state of `run`, with the states of that scaffold as context, unless an equal state exists."""
        plain = self._plain[run.index]
        if plain == _NONE:
            return
        in_scaffold = self._scaffold.setdefault(scaffold, {})
        sees = _without_none(tuple(in_scaffold.get(index, self._plain[index]) for index in visible))
        for state in self.states[plain:]:  # the states of this run
            if state.sees == sees and state.kind is not StateKind.STAND_IN:
                in_scaffold[run.index] = state.index
                if state.index != plain:
                    self.states[state.index] = replace(state, scaffolds=(*state.scaffolds, scaffold))
                return
        in_scaffold[run.index] = self._add(run.index, StateKind.SCAFFOLD, sees, run.token_ids, run.places)
        self.states[-1] = replace(self.states[-1], scaffolds=(scaffold,))

    def _add(
        self,
        run: int,
        kind: StateKind,
        sees: tuple[int, ...],
        token_ids: tuple[int, ...],
        places: tuple[int, ...],
    ) -> int:
        """Add a state of a run, or a stand-in. With closed positions, `places` are not used."""
        known = self._contexts.get(sees)  # share one tuple among equal contexts
        if known is None:
            known = self._contexts[sees] = sees, self._context(sees)
        sees, context = known
        if self._is_closed:
            places = positions_behind(context, len(token_ids))
        encoding = Encoding(token_ids=token_ids, position_ids=places, context=context, codec=self._codec)
        index = len(self.states)
        self.states.append(RunState(index=index, run=run, kind=kind, scaffolds=(), sees=sees, encoding=encoding))
        return index

    def _context(self, sees: tuple[int, ...]) -> tuple[KVPart, ...]:
        """Return the whole encodings of states: where they are encoded, or closed up."""
        parts = [self.states[index].encoding.whole for index in sees]
        return closed_up(parts) if self._is_closed else tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionView:
    """Runs that the members of a collection attend to while they are encoded.

    Attributes:
        plain: Of a member that stands directly behind what is guaranteed with the collection.
        before, behind: Of other members, before and behind their stand-ins.
        uses_stand_ins: Whether they have any.
    """

    plain: Sequence[int]
    before: Sequence[int]
    behind: Sequence[int]
    uses_stand_ins: bool


class Visibility:
    """Earlier runs that each run attends to."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._stops = [run.stop for run in layout.runs]
        self._runs_of: dict[frozenset[str], list[int]] = {}
        self._num_before = num_before(layout.schema)
        self._in_turns = _in_turns(layout.schema.children, in_turn=not layout.schema.has_turns)
        self._earlier = _Earlier(layout)
        always = layout.schema.guaranteed[""]
        self._may_be_absent = [run for run in layout.runs if run.module and run.module not in always]

    def plain(self, run: Run) -> list[int]:
        """Return the context of `run` outside scaffolds: the guaranteed runs, or only those of its own module."""
        schema, path = self._layout.schema, run.module
        context = schema.modules[path].context if path else schema.source.context
        if context is Context.GUARANTEED:
            return self.before(run, self.runs_of(schema.guaranteed[path]))
        bos = [0] if self._layout.has_bos and path else []
        return self.before(run, [*bos, *self._layout.runs_of[path]])

    def behind(self, run: Run, visible: list[int]) -> tuple[int, list[int], int]:
        """Return what the run of a module attends to behind others.

        Args:
            visible: The result of `plain` for it.

        Returns:
            The number of stand-ins, the runs, and the run that the stand-ins are before: the first one of a module that
            may be absent.
        """
        schema, path = self._layout.schema, run.module
        guaranteed = schema.guaranteed[path]
        first = next((each for each in self._may_be_absent if each.module not in guaranteed), run)
        if schema.modules[path].context is Context.GUARANTEED:
            if schema.modules[path].sees is Sees.STAND_INS and first.module in self._in_turns:
                return self._num_before[path], visible, first.index
            if schema.modules[path].sees is Sees.EARLIER:
                return 0, self.before(run, sorted({*visible, *self._earlier.of(run)})), first.index
        return 0, visible, first.index

    def of_collection(self, path: str) -> CollectionView:
        """Return what the members of a collection attend to: what a run at its place would."""
        start = self._layout.modules[path].start
        piece = TextPiece(start=start, token_ids=(), text="", span=self._layout.schema.source.span)
        place = Run(index=self._layout.collections[path], module=path, pieces=(piece,), cached=True)
        plain = self.plain(place)
        sees = self._layout.schema.modules[path].sees
        if sees is Sees.PREVIOUS:
            return CollectionView(plain=plain, before=plain, behind=(), uses_stand_ins=False)
        _, visible, first = self.behind(place, plain)
        return CollectionView(
            plain=plain,
            before=[index for index in visible if index < first],
            behind=[index for index in visible if index >= first],
            uses_stand_ins=sees is Sees.STAND_INS,
        )

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


class _Earlier:
    """Runs of earlier modules that runs with `sees="earlier"` attend to."""

    def __init__(self, layout: Layout) -> None:
        schema = layout.schema
        hidden = {path for path, module in schema.modules.items() if module.private or not module.cache}
        for union in (item for item in walk_checked(schema.children) if isinstance(item, CheckedUnion)):
            hidden.update(member.path for member in union.members[1:])  # one of them can be present
        self._layout = layout
        self._hidden = hidden

    def of(self, run: Run) -> list[int]:
        """Return the last runs before `run`, `MAX_EARLIER_TOKENS` in all, without private modules."""
        found: list[int] = []
        left = MAX_EARLIER_TOKENS
        for other in reversed(self._layout.runs[: run.index]):
            if not other.module or self._is_hidden(other.module, run.module) or not other.cached:
                continue
            left -= len(other.token_ids)
            if left < 0:
                break
            found.append(other.index)
        return found

    def _is_hidden(self, path: str, seen_by: str) -> bool:
        """Whether a module, or a module around it, is not seen."""
        steps = path.split("/")
        around = ("/".join(steps[: number + 1]) for number in range(len(steps)))
        return any(each in self._hidden and not f"{seen_by}/".startswith(f"{each}/") for each in around)


def _in_turns(items: Iterable[CheckedItem], *, in_turn: bool) -> frozenset[str]:
    """Return the modules that are in a turn, so that text can stand before them. Without turns, these are all."""
    found: list[str] = []
    for item in items:
        if isinstance(item, CheckedModule):
            found += [item.path] if in_turn else []
            found += _in_turns(item.children, in_turn=in_turn)
        elif isinstance(item, CheckedUnion):
            found += _in_turns(item.members, in_turn=in_turn)
        elif isinstance(item, CheckedTurn):
            found += _in_turns(item.children, in_turn=True)
    return frozenset(found)


def _without_none(indices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(index for index in indices if index != _NONE) if _NONE in indices else indices


def _covering_scaffolds(layout: Layout) -> dict[str, list[CheckedScaffold]]:
    """Return the scaffolds that cover each module, in declared order."""
    scaffolds: dict[str, list[CheckedScaffold]] = {}
    for scaffold in layout.schema.scaffolds:
        for path in covered_modules(scaffold, scaffold.guaranteed):
            scaffolds.setdefault(path, []).append(scaffold)
    return scaffolds
