"""Make the tree of a schema, at the places of its layout, or of a prompt, at the positions of the prompt.

The tree of a prompt has the structure of its schema, and the tokens of the plan's pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from promptcache.diagnostics import counted, size_text
from promptcache.language import CheckedModule, CheckedParameter, CheckedTurn, CheckedUnion
from promptcache.layout import (
    Layout,
    LayoutLeaf,
    LayoutNode,
    LeafKind,
    Origin,
    Piece,
    Plan,
    Slot,
    VariantKind,
    run_variants,
    scaffolds_in_use,
)
from promptcache.picture.part import Part, PartKind, Stretch, Use


def view(shown: Layout | Plan, token_bytes: int | None = None) -> Part:
    """Return the tree of a schema or of a prompt.

    Args:
        shown: The layout of a schema, or the plan of a prompt.
        token_bytes: KV size of one token.
    """
    viewer = _PlanViewer(shown, token_bytes) if isinstance(shown, Plan) else _LayoutViewer(shown, token_bytes)
    return viewer.root()


class _Viewer(ABC):
    """Builder of a tree, in document order."""

    def __init__(self, layout: Layout, token_bytes: int | None) -> None:
        self._layout = layout
        self._token_bytes = token_bytes
        self._num_before: Counter[int] = Counter()  # tokens of each run in the leaves so far
        self._sees_of: dict[str, dict[str, None]] = {}  # modules that the stored tokens of each module attend to

    @abstractmethod
    def root(self) -> Part:
        """Return the tree."""

    @abstractmethod
    def _stretches(self, leaf: LayoutLeaf, index: int) -> Iterable[Stretch]:
        """Yield where the tokens of a text or slot are; the first one is token `index` of its run."""

    @abstractmethod
    def _slot(self, slot: Slot, parameter: CheckedParameter) -> tuple[str, tuple[str, ...]]:
        """Return the content of a slot, and its properties in words."""

    @abstractmethod
    def _range(self, node: LayoutNode | LayoutLeaf | None, inside: Sequence[Part | Stretch]) -> tuple[int, int]:
        """Return the positions of a part."""

    def _sees(self, path: str) -> tuple[str, ...]:
        return tuple(other for other in self._sees_of.get(path, ()) if other != path)

    def _marks(self, module: CheckedModule) -> Iterator[str]:
        """Yield the properties of a module in words."""
        if module.required:
            yield "required"
        if not module.cache:
            yield "not cached"
        if module.node.reserve is not None:
            yield f"reserve {module.node.reserve}"
        if (limits := module.collection) is not None:
            yield f"collection, {limits.minimum} to {'any number' if limits.maximum is None else limits.maximum}"

    def _module(self, node: LayoutNode, module: CheckedModule) -> Part:
        children, marks = self._parts(node.children), tuple(self._marks(module))
        return self._part(PartKind.MODULE, module.path, node, children, marks=marks, sees=self._sees(module.path))

    def _parts(self, nodes: Iterable[LayoutNode | LayoutLeaf]) -> tuple[Part, ...]:
        return tuple(map(self._node, nodes))

    def _node(self, node: LayoutNode | LayoutLeaf) -> Part:
        if isinstance(node, LayoutLeaf):
            return self._leaf(node)
        match node.item:
            case CheckedModule() as module:
                return self._module(node, module)
            case CheckedTurn() as turn:
                return self._part(
                    PartKind.TURN, turn.role, node, self._parts(node.children), marks=("open",) if turn.open else ()
                )
            case CheckedUnion() as union:
                chosen = "at most one" if not union.required and union.default is None else "exactly one"
                marks = (chosen,) if union.default is None else (chosen, f"default {union.default}")
                members = self._parts(node.children)
                is_used = any(member.present for member in members)
                return self._part(PartKind.UNION, union.name or "", node, members, marks=marks, present=is_used)

    def _leaf(self, leaf: LayoutLeaf) -> Part:
        piece, index = leaf.piece, self._num_before[leaf.run]
        self._num_before[leaf.run] += leaf.num_tokens
        stretches = tuple(self._stretches(leaf, index))
        if isinstance(piece, Slot):
            parameter = self._layout.schema.parameters[piece.module][piece.parameter]
            text, marks = self._slot(piece, parameter)
            return self._part(PartKind.SLOT, piece.parameter, leaf, text=text, marks=marks, stretches=stretches)
        kind = PartKind.TEXT if leaf.kind is LeafKind.TEXT else PartKind.FRAME
        return self._part(kind, leaf.kind, leaf, text=piece.text, stretches=stretches)

    def _part(
        self,
        kind: PartKind,
        name: str,
        node: LayoutNode | LayoutLeaf | None = None,
        children: Sequence[Part] = (),
        *,
        text: str = "",
        stretches: Sequence[Stretch] = (),
        marks: tuple[str, ...] = (),
        sees: tuple[str, ...] = (),
        present: bool = True,
    ) -> Part:
        tokens: Counter[Use] = Counter()
        for stretch in stretches:
            tokens[stretch.use] += stretch.stop - stretch.start
        for child in children:
            tokens.update(child.tokens if child.kind.is_leaf else {})
        start, stop = self._range(node, stretches or children)
        num_stored = sum(number for use, number in tokens.items() if use.is_stored)
        return Part(
            kind=kind,
            name=name,
            start=start,
            stop=stop,
            text=text,
            tokens=dict(tokens),
            kv_bytes=None if self._token_bytes is None else num_stored * self._token_bytes,
            sees=sees,
            marks=marks,
            present=present,
            stretches=tuple(stretches),
            children=tuple(children),
        )


class _LayoutViewer(_Viewer):
    """Builder of the tree of a schema."""

    def __init__(self, layout: Layout, token_bytes: int | None) -> None:
        super().__init__(layout, token_bytes)
        self._variants = run_variants(layout)
        for variant in self._variants:
            if variant.kind is VariantKind.PLAIN:
                seen = (self._variants[index] for index in variant.sees)
                paths = (each.module(layout) for each in seen if each.run or not layout.has_bos)  # all see BOS
                self._sees_of.setdefault(variant.module(layout), {}).update(dict.fromkeys(paths))

    def root(self) -> Part:
        layout = self._layout
        num_tokens = sum(variant.encoding.num_tokens for variant in self._variants)
        size = "" if self._token_bytes is None else f", {size_text(num_tokens * self._token_bytes)}"
        marks = (
            counted(len(layout.schema.modules), "module"),
            f"{counted(num_tokens, 'token')} in {counted(len(self._variants), 'encoding')}{size}",
        )
        children = (*self._parts(layout.tree), *self._scaffolds())
        return self._part(PartKind.SCHEMA, layout.schema.name, None, children, marks=marks, sees=self._sees(""))

    def _scaffolds(self) -> Iterator[Part]:
        layout = self._layout
        for scaffold in layout.schema.scaffolds:
            runs = [layout.runs[variant.run] for variant in self._variants if scaffold.name in variant.scaffolds]
            together = [stretch for run in runs for stretch in _stretched(run.places, Use.TOGETHER)]
            members = " + ".join(scaffold.members)
            yield self._part(PartKind.SCAFFOLD, scaffold.name, stretches=together, marks=(members,))

    def _stretches(self, leaf: LayoutLeaf, index: int) -> Iterator[Stretch]:
        use = Use.FILLER if isinstance(leaf.piece, Slot) else Use.CACHED
        if not self._layout.runs[leaf.run].cached:
            use = Use.UNCACHED
        return _stretched(range(leaf.start, leaf.start + leaf.num_tokens), use)

    def _slot(self, slot: Slot, parameter: CheckedParameter) -> tuple[str, tuple[str, ...]]:
        size = (f"length {parameter.length} and the space before it",) if slot.lead else ()
        required = ("required",) if parameter.required else ()
        fillers = {"default": parameter.default, "placeholder": parameter.placeholder}
        return "", (*size, *required, *(f"{name} {text!r}" for name, text in fillers.items() if text is not None))

    def _range(self, node: LayoutNode | LayoutLeaf | None, inside: Sequence[Part | Stretch]) -> tuple[int, int]:
        if node is not None:
            return node.start, node.stop
        return min((each.start for each in inside), default=0), max((each.stop for each in inside), default=0)


class _PlanViewer(_Viewer):
    """Builder of the tree of a prompt."""

    def __init__(self, plan: Plan, token_bytes: int | None) -> None:
        super().__init__(plan.layout, token_bytes)
        self._plan = plan
        self._at = 0  # behind the parts so far
        self._arguments = {(given.module, given.parameter): given.text for given in plan.selection.arguments}
        self._scaffolds = scaffolds_in_use(plan.selection.schema.scaffolds, plan.selection.modules)
        self._pieces: dict[tuple[str, int], list[tuple[Piece, Sequence[int]]]] = {}  # of each run, with positions
        before: dict[tuple[str, int], tuple[int, ...]] = {}
        for piece in plan.pieces:
            if piece.run is not None:
                key = piece.module, piece.run.index
                self._pieces.setdefault(key, []).append((piece, piece.position_ids))
                seen = (path for path, run in _seen(piece, before) if path or run or not plan.layout.has_bos)
                self._sees_of.setdefault(piece.module, {}).update(dict.fromkeys(seen))
                before.setdefault(key, piece.run.token_ids)

    def root(self) -> Part:
        plan = self._plan
        size = "" if self._token_bytes is None else f" ({size_text(plan.num_reused_tokens * self._token_bytes)})"
        marks = (
            f"{counted(plan.num_reused_tokens, 'token')} reused{size}",
            f"{plan.num_new_tokens:,} new",
            f"level {plan.level}",
            f"answer from position {plan.stop:,}",
        )
        children = (*self._parts(self._layout.tree), self._added())
        return self._part(PartKind.SCHEMA, self._layout.schema.name, None, children, marks=marks, sees=self._sees(""))

    def _added(self) -> Part:
        """Return the text that the prompt adds."""
        texts = iter([message.text for message in self._plan.selection.messages if message.text])
        leaves = []
        for piece in (each for each in self._plan.pieces if each.run is None):
            is_text = piece.origin is Origin.TEXT
            kind, text = (PartKind.TEXT, next(texts, "")) if is_text else (PartKind.FRAME, "")
            stretches = [*_stretched(piece.position_ids, Use.NEW)]
            leaves.append(self._part(kind, str(piece.origin), text=text, stretches=stretches))
        return self._part(PartKind.PROMPT, "added by the prompt", None, leaves)

    def _marks(self, module: CheckedModule) -> Iterator[str]:
        yield from super()._marks(module)
        if module.path in self._scaffolds:
            yield f"in scaffold {self._scaffolds[module.path]}"

    def _module(self, node: LayoutNode, module: CheckedModule) -> Part:
        if module.path not in self._plan.selection.modules:
            return self._part(PartKind.MODULE, module.path, marks=tuple(self._marks(module)), present=False)
        if module.collection is None:
            return super()._module(node, module)
        paths = (path for path in self._plan.selection.members if path.rpartition("/")[0] == module.path)
        members = [*self._members(paths)]
        return self._part(PartKind.MODULE, module.path, None, members, marks=tuple(self._marks(module)))

    def _members(self, paths: Iterable[str]) -> Iterator[Part]:
        """Yield members of a collection, which have no place in a layout."""
        pieces = {path: own for (path, _), own in self._pieces.items()}
        for path in paths:
            own = pieces.get(path, ())
            stretches = [stretch for piece, positions in own for stretch in _stretched(positions, _use(piece))]
            text = self._plan.selection.members[path].text
            leaf = self._part(PartKind.TEXT, PartKind.TEXT, text=text, stretches=stretches)
            yield self._part(PartKind.MODULE, path, None, [leaf], sees=self._sees(path))

    def _stretches(self, leaf: LayoutLeaf, index: int) -> Iterator[Stretch]:
        run, stop = self._layout.runs[leaf.run], index + leaf.num_tokens
        for piece, positions in self._pieces.get((run.module, run.index), ()):
            if piece.index is not None:
                first = max(index, piece.index)
                yield from _stretched(positions[first - piece.index : max(first, stop) - piece.index], _use(piece))
            elif isinstance(leaf.piece, Slot) and leaf.piece.parameter == piece.parameter:
                yield from _stretched(positions, _use(piece))

    def _slot(self, slot: Slot, parameter: CheckedParameter) -> tuple[str, tuple[str, ...]]:
        given = self._arguments.get((slot.module, slot.parameter))
        if given is not None:
            return given, (f"argument {given!r}",)
        return parameter.default or "", (f"default {parameter.default!r}" if parameter.default else "empty",)

    def _range(self, node: LayoutNode | LayoutLeaf | None, inside: Sequence[Part | Stretch]) -> tuple[int, int]:
        used = [each for each in inside if each.start < each.stop]
        start = min((each.start for each in used), default=self._at)
        self._at = max((each.stop for each in used), default=start)
        return start, self._at


def _use(piece: Piece) -> Use:
    if piece.source is not None:
        return Use.REUSED
    return Use.REPAIRED if piece.origin in (Origin.REPAIRED, Origin.LAST) else Use.NEW


def _stretched(positions: Sequence[int], use: Use) -> Iterator[Stretch]:
    """Yield positions in order as stretches; a gap divides them."""
    for _, group in groupby(enumerate(positions), key=lambda each: each[1] - each[0]):
        found = [position for _, position in group]
        yield Stretch(found[0], found[-1] + 1, use)


def _seen(piece: Piece, before: Mapping[tuple[str, int], tuple[int, ...]]) -> Iterator[tuple[str, int]]:
    """Yield the runs that a stored piece attends to.

    Args:
        before: The tokens of the runs of the prompt before it, in order. Its context are some of these, in this order.
    """
    context = iter(() if piece.source is None else piece.source.encoding.context)
    part = next(context, None)
    for run, token_ids in before.items():
        if part is not None and token_ids == part.encoding.token_ids:
            yield run
            part = next(context, None)
