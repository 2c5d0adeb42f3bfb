"""A layout as it is shown: the schema's tree with positions, tokens and bytes at every node.

Comes in: a layout, its encodings, and what a token costs. Goes out: a `View` of plain values, for a terminal or for
JSON. This file prints nothing and counts only what the layout says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from promptcache.cli.model_folder import ModelFacts
from promptcache.diagnostics import Span
from promptcache.language.checked import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion, FinalText
from promptcache.language.rules.count import Count
from promptcache.language.schema import Parameter
from promptcache.layout import Layout, Piece, RunState, Slot, Stretch


class NodeKind(StrEnum):
    """What a node of the tree is."""

    TEXT = "text"
    SLOT = "slot"
    TURN = "turn"
    MODULE = "module"
    UNION = "union"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part of a schema in the positions `[start, stop)`.

    Attributes:
        name: Path of a module, name of a parameter or union, role of a turn; the text itself of a text.
        num_tokens: Tokens that it has while slots hold their fillers, those of modules inside it left out.
        kv_bytes: KV of a module's own text, 0 where it is not cached; None for everything else.
        sees: The modules that a module's own text attends to besides itself; "" is the schema's text outside modules.
        marks: What else matters: required, not cached, open, ...
    """

    kind: NodeKind
    name: str
    start: int
    stop: int
    num_tokens: int = 0
    kv_bytes: int | None = None
    sees: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaffoldView:
    """What a scaffold adds: tokens encoded once more, together."""

    name: str
    members: tuple[str, ...]
    num_tokens: int
    kv_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RootView:
    """The schema's text outside modules, BOS included."""

    num_tokens: int
    kv_bytes: int
    sees: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that `promptcache layout` says about a schema.

    Attributes:
        num_positions: What the schema needs: its longest prompt, slots whole, without text of the prompt's own.
        num_tokens: All encoded tokens, those of scaffolds included.
        num_combinations: Valid sets of modules; at least that many where `combinations_exact` is false.
    """

    schema: str
    model: ModelFacts
    num_positions: int
    num_encodings: int
    num_tokens: int
    kv_bytes: int
    num_combinations: int
    combinations_exact: bool
    root: RootView
    nodes: tuple[Node, ...]
    scaffolds: tuple[ScaffoldView, ...]


def view_layout(layout: Layout, states: Sequence[RunState], model: ModelFacts, combinations: Count) -> View:
    """Return a layout as it is shown.

    Args:
        layout: Of the schema, under the model's tokenizer.
        states: What `run_states(layout)` returned.
        model: Says what a token costs.
        combinations: Valid sets of the schema's modules.
    """
    viewer = _Viewer(layout, states, model.token_bytes)
    num_tokens = sum(each.encoding.num_tokens for each in states)
    return View(
        schema=layout.schema.name,
        model=model,
        num_positions=layout.stop,
        num_encodings=len(states),
        num_tokens=num_tokens,
        kv_bytes=num_tokens * model.token_bytes,
        num_combinations=combinations.number,
        combinations_exact=combinations.exact,
        root=viewer.root(),
        nodes=tuple(viewer.nodes(layout.schema.children, "")),
        scaffolds=tuple(viewer.scaffolds()),
    )


class _Viewer:
    """Walks a checked schema and looks every part up in the layout, by its place in the document."""

    def __init__(self, layout: Layout, states: Sequence[RunState], token_bytes: int) -> None:
        self._layout = layout
        self._states = states
        self._token_bytes = token_bytes
        self._pieces: dict[tuple[str, Span], list[Piece]] = {}
        for run in layout.runs[layout.has_bos :]:
            for piece in run.pieces:
                self._pieces.setdefault((run.module, piece.span), []).append(piece)
        self._plain: dict[str, list[RunState]] = {}
        for each in states:
            if not each.scaffolds:
                self._plain.setdefault(self._module_of(each), []).append(each)

    def root(self) -> RootView:
        """Return what stands outside all modules."""
        num_tokens = sum(each.encoding.num_tokens for each in self._plain.get("", ()))
        return RootView(num_tokens=num_tokens, kv_bytes=num_tokens * self._token_bytes, sees=self._seen_by(""))

    def scaffolds(self) -> Iterator[ScaffoldView]:
        """Yield what each scaffold adds, in declared order."""
        for scaffold in self._layout.schema.scaffolds:
            num_tokens = sum(each.encoding.num_tokens for each in self._states if scaffold.name in each.scaffolds)
            yield ScaffoldView(
                name=scaffold.name,
                members=scaffold.members,
                num_tokens=num_tokens,
                kv_bytes=num_tokens * self._token_bytes,
            )

    def nodes(self, items: Sequence[CheckedItem], owner: str) -> Iterator[Node]:
        """Yield the nodes of what stands in module `owner`; what takes no positions at all is left out."""
        for item in items:
            match item:
                case CheckedModule():
                    yield self._module(item)
                case CheckedUnion():
                    yield self._union(item)
                case CheckedTurn():
                    yield self._turn(item, owner)
                case Parameter():
                    yield self._slot(item, owner)
                case FinalText():
                    yield from self._text(item, owner)

    def _module(self, module: CheckedModule) -> Node:
        extent = self._layout.extents[module.path]
        runs = self._layout.runs_of[module.path]
        num_tokens = sum(_num_tokens(piece) for run in runs for piece in self._layout.runs[run].pieces)
        marks = [(module.required, "required"), (not module.cache, "not cached")]
        return Node(
            kind=NodeKind.MODULE,
            name=module.path,
            start=extent.start,
            stop=extent.stop,
            num_tokens=num_tokens,
            kv_bytes=num_tokens * self._token_bytes if module.cache else 0,
            sees=self._seen_by(module.path),
            marks=tuple(mark for holds, mark in marks if holds),
            children=tuple(self.nodes(module.children, module.path)),
        )

    def _union(self, union: CheckedUnion) -> Node:
        members = tuple(self._module(member) for member in union.members)
        chosen = "at most one" if not union.required and union.default is None else "exactly one"
        marks = (chosen,) if union.default is None else (chosen, f"default {union.default}")
        start, stop = min(member.start for member in members), max(member.stop for member in members)
        return Node(kind=NodeKind.UNION, name=union.name or "", start=start, stop=stop, marks=marks, children=members)

    def _turn(self, turn: CheckedTurn, owner: str) -> Node:
        children = tuple(self.nodes(turn.children, owner))
        frame = self._pieces.get((owner, turn.span), [])
        starts = [piece.start for piece in frame] + [child.start for child in children]
        own = sum(child.num_tokens for child in children if child.kind in {NodeKind.TEXT, NodeKind.SLOT})
        return Node(
            kind=NodeKind.TURN,
            name=turn.role,
            start=min(starts, default=0),
            stop=max([piece.stop for piece in frame] + [child.stop for child in children], default=0),
            num_tokens=own + sum(map(_num_tokens, frame)),
            marks=("open",) if turn.open else (),
            children=children,
        )

    def _slot(self, parameter: Parameter, owner: str) -> Node:
        slot = next(piece for piece in self._pieces[owner, parameter.span] if isinstance(piece, Slot))
        marks = [(parameter.required, "required")]
        fillers = {"default": parameter.default, "placeholder": parameter.placeholder}
        marks += [(text is not None, f"{name} {text!r}") for name, text in fillers.items()]
        return Node(
            kind=NodeKind.SLOT,
            name=parameter.name,
            start=slot.start,
            stop=slot.stop,
            num_tokens=_num_tokens(slot),
            marks=tuple(mark for holds, mark in marks if holds),
        )

    def _text(self, text: FinalText, owner: str) -> Iterator[Node]:
        for piece in self._pieces.get((owner, text.span), ()):
            if isinstance(piece, Stretch) and piece.text == text.text:
                yield Node(
                    kind=NodeKind.TEXT,
                    name=text.text,
                    start=piece.start,
                    stop=piece.stop,
                    num_tokens=len(piece.token_ids),
                )

    def _seen_by(self, module: str) -> tuple[str, ...]:
        """Return the modules whose text the plain states of a module attend to, in document order, without itself."""
        indices = dict.fromkeys(index for each in self._plain.get(module, ()) for index in each.sees)
        seen = [self._states[index] for index in indices]
        bos = 0 if self._layout.has_bos else None  # everything sees it
        paths = dict.fromkeys(self._module_of(each) for each in seen if each.run != bos)
        return tuple(path for path in paths if path != module)

    def _module_of(self, state: RunState) -> str:
        return self._layout.runs[state.run].module


def _num_tokens(piece: Piece) -> int:
    """Return the tokens that a piece has while it is encoded."""
    return len(piece.filler_ids if isinstance(piece, Slot) else piece.token_ids)
