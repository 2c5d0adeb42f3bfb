"""Convert a layout to lines: one for each module, union and turn, with its own text and slots as marks.

`make_chart` reads the tree of a layout and, if there is one, a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from operator import attrgetter

from promptcache.diagnostics import counted, size_text
from promptcache.language import CheckedModule, CheckedScaffold, CheckedTurn, CheckedUnion
from promptcache.layout import (
    Layout,
    LayoutLeaf,
    LayoutNode,
    LeafKind,
    Origin,
    Piece,
    Plan,
    RunState,
    Slot,
    StateKind,
    covered_modules,
)
from promptcache.picture.chart import Chart, ChartLine, LineKind, Look, Mark
from promptcache.picture.fold import folded
from promptcache.picture.notes import Notes, gap, positions
from promptcache.picture.use import Use

_MAX_LABEL = 100
_MAX_CONTEXTS, _MAX_CONTEXT_RUNS = 400, 20_000  # limits for highlighting contexts on hover


def make_chart(layout: Layout, states: Sequence[RunState], plan: Plan | None, token_bytes: int | None) -> Chart:
    """Return the lines of a layout.

    Args:
        layout: The layout to draw.
        states: The result of `run_states(layout)`.
        plan: Plan of a prompt for this layout; None draws the layout alone.
        token_bytes: KV size of one token, to show sizes in bytes.
    """
    builder = _Builder(layout, states, plan, token_bytes)
    lines = tuple(builder.all())
    return Chart(
        title=layout.schema.name,
        summary=_about(layout, states, token_bytes) if plan is None else _about_prompt(plan, token_bytes),
        stop=max([1, layout.stop, *(line.stop for line in lines)]),
        lines=folded(lines),
        num_contexts=builder.num_contexts,
    )


class _Builder:
    """Builder of lines from the tree of a layout, in document order."""

    def __init__(self, layout: Layout, states: Sequence[RunState], plan: Plan | None, token_bytes: int | None) -> None:
        self._layout = layout
        self._plan = plan
        self._use = Use(plan)
        self._notes = Notes(layout, states, token_bytes)
        self._states = states
        self._slots = count()
        self._modules = {path: index for index, path in enumerate(layout.schema.modules)}
        self._contexts, self._seen_in = _contexts(layout, states)
        self.num_contexts = len(set(self._contexts.values()))

    def all(self) -> Iterator[ChartLine]:
        """Yield the lines of the schema and of its scaffolds, and the line of the text that the prompt adds."""
        marks, lines = self._inside(self._layout.tree, "")
        if marks:
            yield ChartLine(
                kind=LineKind.ROOT,
                start=marks[0].start,
                stop=max(each.stop for each in marks),
                labels=("(root)",),
                notes=("text outside modules and turns: it is in every prompt",),
                num_tokens=_own_tokens(self._layout.tree),
                marks=marks,
                seen_in=self._sets_with(marks),
            )
        yield from lines
        yield from map(self._scaffold, self._layout.schema.scaffolds)
        if self._plan is not None:
            yield self._prompt(self._plan)

    def _scaffold(self, scaffold: CheckedScaffold) -> ChartLine:
        """Return the line of a scaffold, with the runs of its modules as marks."""
        present = self._use.has_scaffold(scaffold.name)
        again = {each.run: each.encoding.num_tokens for each in self._states if scaffold.name in each.scaffolds}
        layout, num_tokens = self._layout, sum(again.values())
        indices = chain.from_iterable(map(layout.runs_of.__getitem__, covered_modules(scaffold, layout.schema.modules)))
        runs = sorted((layout.runs[index] for index in indices), key=attrgetter("start"))
        marks = tuple(
            Mark(
                start=run.start,
                stop=run.stop,
                look=Look.TOGETHER if run.index in again else Look.CACHED,
                labels=(run.module.rpartition("/")[2],),
                notes=(
                    f"module {run.module} in scaffold {scaffold.name}",
                    f"{positions(run.start, run.stop)} · {counted(again.get(run.index, 0), 'token')} once more",
                ),
                present=present,
            )
            for run in runs
        )
        return ChartLine(
            kind=LineKind.SCAFFOLD,
            start=min((run.start for run in runs), default=0),
            stop=max((run.stop for run in runs), default=0),
            labels=(f"scaffold {scaffold.name}", scaffold.name),
            notes=self._notes.scaffold(scaffold, num_tokens, present=present),
            num_tokens=num_tokens,
            marks=marks,
            present=present,
        )

    def _inside(
        self, nodes: Iterable[LayoutNode | LayoutLeaf], owner: str, turn: str = ""
    ) -> tuple[tuple[Mark, ...], tuple[ChartLine, ...]]:
        """Return the texts and slots among `nodes` as marks, and all other nodes as lines."""
        marks: list[Mark] = []
        lines: list[ChartLine] = []
        for node in nodes:
            if isinstance(node, LayoutLeaf):
                marks.append(self._mark(node, turn))
            elif isinstance(node.item, CheckedModule):
                lines.append(self._module(node, node.item))
            elif isinstance(node.item, CheckedUnion):
                lines.append(self._union(node, node.item))
            elif node.children:
                lines.append(self._turn(node, node.item, owner))
        return tuple(marks), tuple(lines)

    def _module(self, node: LayoutNode, module: CheckedModule) -> ChartLine:
        present = self._use.has(module.path)
        marks, lines = self._inside(node.children, module.path)
        stop = max((each.stop for each in node.children), default=node.start)
        if stop < node.stop:
            marks += (_gap(stop, node.stop, f"reserve of module {module.path}", present=present),)
        name = module.path.rpartition("/")[2]
        facts = {"required": module.required, "not cached": not module.cache}
        tags = [tag for tag, holds in facts.items() if holds]
        num_tokens, index = _own_tokens(node.children), self._modules[module.path]
        return ChartLine(
            kind=LineKind.MODULE,
            start=node.start,
            stop=node.stop,
            labels=(" · ".join([name, *tags]), name) if tags else (name,),
            notes=self._notes.module(node, module, num_tokens, present=present),
            num_tokens=num_tokens,
            marks=marks,
            children=lines,
            present=present,
            sees=self._contexts.get(module.path),
            seen_in=self._sets_with(marks),
            modules=range(index, index + 1),
        )

    def _union(self, node: LayoutNode, union: CheckedUnion) -> ChartLine:
        _, members = self._inside(node.children, union.parent)
        name = f"union {union.name}" if union.name else "union"
        chosen = "exactly one" if union.required or union.default is not None else "at most one"
        default = f", default {union.default}" if union.default is not None else ""
        why = f"{name} is as long as its longest member"
        return ChartLine(
            kind=LineKind.UNION,
            start=node.start,
            stop=node.stop,
            labels=(f"{name} · {chosen} of {len(members)}", name),
            notes=(f"{name}: {chosen} of {len(members)} members{default}", positions(node.start, node.stop)),
            children=tuple(_padded(member, node.stop, why) for member in members),
            present=any(member.present for member in members),
        )

    def _turn(self, node: LayoutNode, turn: CheckedTurn, owner: str) -> ChartLine:
        marks, lines = self._inside(node.children, owner, f"the {turn.role} turn")
        state = "open: the prompt continues and closes it" if turn.open else "closed"
        return ChartLine(
            kind=LineKind.TURN,
            start=node.start,
            stop=node.stop,
            labels=(f"{turn.role} turn{' · open' if turn.open else ''}", str(turn.role)),
            notes=(f"{turn.role} turn, {state}", positions(node.start, node.stop)),
            num_tokens=_own_tokens(node.children),
            marks=marks,
            children=lines,
            present=self._use.has(owner),
            seen_in=self._sets_with(marks),
        )

    def _sets_with(self, marks: Iterable[Mark]) -> tuple[int, ...]:
        """Return the indices of the sets that contain a run of these marks."""
        runs = {run for mark in marks for run in mark.runs}
        return tuple(sorted({number for run in runs for number in self._seen_in.get(run, ())}))

    def _mark(self, leaf: LayoutLeaf, turn: str) -> Mark:
        run, piece = self._layout.runs[leaf.run], leaf.piece
        present = self._use.has(run.module)
        sections = tuple(self._use.sections(run, piece, leaf.kind))
        runs = range(run.index, run.index + 1)
        if isinstance(piece, Slot):
            argument = self._use.argument(piece)
            index = next(self._slots)
            given = [] if argument is None else [f"{piece.parameter}: {argument[:_MAX_LABEL]}"]
            return Mark(
                start=piece.start,
                stop=piece.stop,
                look=Look.SLOT,
                labels=(*given, piece.parameter),
                notes=self._notes.slot(run, piece, sections, argument),
                sections=sections,
                present=present,
                runs=runs,
                slots=range(index, index + 1),
            )
        what = {
            LeafKind.BOS: "BOS, the start of every prompt",
            LeafKind.HEADER: f"header of {turn}",
            LeafKind.FOOTER: f"footer of {turn}",
        }.get(leaf.kind, "")
        alone = len(sections) == 1 and sections[0].stop - sections[0].start == piece.stop - piece.start
        return Mark(
            start=piece.start,
            stop=piece.stop,
            look=sections[0].look if alone else Look.TEXT,
            labels=(piece.text.strip()[:_MAX_LABEL],),
            notes=self._notes.text(run, piece, what, sections),
            sections=() if alone else sections,
            present=present,
            runs=runs,
        )

    def _prompt(self, plan: Plan) -> ChartLine:
        """Return the line of the text that the prompt adds, with the position where generation starts."""
        texts = iter([message.text for message in plan.selection.messages if message.text])
        stop, marks = self._use.stop, list[Mark]()
        for piece in plan.added:
            text = next(texts, None) if piece.origin is Origin.TEXT else None
            marks.append(self._added(stop, piece, text))
            stop = marks[-1].stop
        start = f"generation starts at position {plan.stop:,}"
        marks.append(Mark(start=stop, stop=stop + 1, look=Look.NEXT, notes=(start,)))
        num_tokens = stop - marks[0].start
        return ChartLine(
            kind=LineKind.PROMPT,
            start=marks[0].start,
            stop=stop + 1,
            labels=("added by the prompt", "prompt"),
            notes=(f"added by the prompt: {num_tokens:,} tokens", start),
            num_tokens=num_tokens,
            marks=tuple(marks),
        )

    def _added(self, start: int, new: Piece, text: str | None) -> Mark:
        return Mark(
            start=start,
            stop=start + len(new.token_ids),
            look=Look.NEW,
            labels=(str(new.origin) if text is None else text.strip()[:_MAX_LABEL],),
            notes=self._notes.added(new, text),
        )


def _contexts(layout: Layout, states: Sequence[RunState]) -> tuple[dict[str, int], dict[int, list[int]]]:
    """Number the sets of runs that modules attend to, if they are few enough to be highlighted.

    The sets exclude BOS and the module's own runs.

    Returns:
        For each module, the index of the set that its plain states attend to. For each run, the indices of the sets
        that it belongs to.
    """
    attended: dict[str, set[int]] = {}
    for state in states:
        owner = state.module(layout)
        if owner and state.kind is StateKind.PLAIN:
            attended.setdefault(owner, set()).update(states[index].run for index in state.sees)
    numbers: dict[frozenset[int], int] = {}
    sees: dict[str, int] = {}
    seen_in: dict[int, list[int]] = {}
    room = _MAX_CONTEXT_RUNS
    for owner, runs in attended.items():
        others = frozenset(runs).difference(layout.runs_of[owner], range(layout.has_bos))
        if others not in numbers:
            room -= len(others)
            if room < 0 or len(numbers) == _MAX_CONTEXTS:
                break
            for run in others:
                seen_in.setdefault(run, []).append(len(numbers))
        sees[owner] = numbers.setdefault(others, len(numbers))
    return sees, seen_in


def _own_tokens(nodes: Iterable[LayoutNode | LayoutLeaf]) -> int:
    return sum(node.num_tokens for node in nodes if isinstance(node, LayoutLeaf))


def _gap(start: int, stop: int, why: str, *, present: bool) -> Mark:
    return Mark(start=start, stop=stop, look=Look.GAP, notes=gap(start, stop, why), present=present)


def _padded(member: ChartLine, stop: int, why: str) -> ChartLine:
    """Return a member of a union with a gap up to the end of the union."""
    if member.stop == stop:
        return member
    return replace(member, marks=(*member.marks, _gap(member.stop, stop, why, present=member.present)))


def _about(layout: Layout, states: Sequence[RunState], token_bytes: int | None) -> str:
    num_tokens = sum(state.encoding.num_tokens for state in states)
    facts = [
        counted(layout.stop, "position"),
        counted(len(layout.schema.modules), "module"),
        f"{counted(num_tokens, 'token')} in {counted(len(states), 'encoding')}",
        *([] if token_bytes is None else [f"KV {size_text(num_tokens * token_bytes)}"]),
    ]
    return " · ".join(facts)


def _about_prompt(plan: Plan, token_bytes: int | None) -> str:
    kept = "" if token_bytes is None else f" (KV {size_text(plan.num_reused_tokens * token_bytes)})"
    facts = [
        f"one prompt: {counted(plan.num_reused_tokens, 'token')} reused{kept}",
        f"{plan.num_new_tokens:,} new",
        f"level {plan.level}",
        f"answer from {plan.stop:,}",
    ]
    return " · ".join(facts)
