"""Assign positions to every run and slot of a checked schema, in one walk in document order.

The walk builds the runs and the tree of the layout together. `run_variants` computes the context of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcache.diagnostics import Diagnostic, SchemaError, Span, diagnostic
from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedSchema,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Placement,
    place,
)
from promptcache.layout.schema_texts import SchemaTexts, WrittenText
from promptcache.layout.turns import TurnTexts, turn_texts
from promptcache.layout.types import Layout, LayoutLeaf, LayoutNode, LeafKind, Run, RunPiece, Slot, TextGroup, TextPiece
from promptcache.tokenizer import Conversations, Tokenizer


def lay_out(
    schema: CheckedSchema,
    tokenizer: Tokenizer,
    *,
    placement: Placement = Placement.CLOSED,
    max_positions: int | None = None,
) -> Layout:
    """Assign position IDs to every run and slot of a schema.

    Args:
        schema: Texts between two places where something optional may stand are tokenized as one.
        tokenizer: Provides the token IDs of texts, and the chat template that writes around turns.
        placement: Where requests have cached text, if the schema does not say.
        max_positions: Positions of the model; None if they are not known.

    Returns:
        The layout; equal arguments give equal layouts.

    Raises:
        SchemaError: Every placeholder and default that has more tokens than its slot (PC502). A placeholder in the
            paper's dialect is cut instead, with a warning (PC511).
    """
    texts = turn_texts(schema, Conversations(tokenizer)) if schema.has_turns else TurnTexts()
    written = SchemaTexts(schema, tokenizer, texts)
    walk = _Walk(tokenizer, written)
    tree = (*walk.add_beginning(schema.source.span), *walk.items(schema.children, _ROOT))
    walk.end_run(_ROOT)
    if walk.faults:
        raise SchemaError(dict.fromkeys(walk.faults))  # a file that is included twice reports its faults twice
    placement = schema.positions or placement
    if placement is Placement.FIXED and walk.collections:
        raise SchemaError([_no_place(schema.modules[path]) for path in walk.collections])
    return Layout(
        schema=schema,
        tree=tree,
        modules=walk.modules,
        runs=tuple(walk.runs),
        collections=walk.collections,
        runs_of=_runs_of(schema, walk.runs),
        stop=max((run.stop for run in walk.runs), default=0),
        placement=placement,
        max_positions=max_positions,
        has_bos=bool(written.beginning.token_ids),
        preamble=texts.preamble,
        turns=texts.turns,
        warnings=tuple(dict.fromkeys((*walk.warnings, *texts.warnings))),
    )


@dataclass(frozen=True, slots=True)
class _Owner:
    """Module whose own text is being laid out."""

    path: str
    cached: bool


_ROOT = _Owner("", cached=True)


class _Walk:
    """Variant of one walk: the current position, and the pieces of the open run."""

    def __init__(self, tokenizer: Tokenizer, written: SchemaTexts) -> None:
        self.runs: list[Run] = []
        self.modules: dict[str, LayoutNode] = {}
        self.collections: dict[str, int] = {}
        self.faults: list[Diagnostic] = []
        self.warnings: list[Diagnostic] = []
        self._tokenizer = tokenizer
        self._written = written
        self._texts = iter(written.texts)
        self._leads = iter(written.leads)
        self._token_ids: dict[str, tuple[int, ...]] = {}
        self._pieces: list[RunPiece] = []
        self._ending: TextGroup | None = None  # of the texts so far
        self._position = 0

    def add_beginning(self, span: Span) -> list[LayoutNode | LayoutLeaf]:
        """Lay out what begins every prompt as a run of its own."""
        leaves = self._text_piece(LeafKind.BOS, self._written.beginning, span)
        self.end_run(_ROOT)
        return leaves

    def items(self, items: Sequence[CheckedItem], owner: _Owner) -> list[LayoutNode | LayoutLeaf]:
        """Lay out the items inside `owner`, in document order."""
        nodes: list[LayoutNode | LayoutLeaf] = []
        for item in items:
            if isinstance(item, FinalText):
                nodes += self._text_piece(LeafKind.TEXT, next(self._texts), item.span)
            elif isinstance(item, CheckedParameter):
                nodes.append(self._add_slot(item, owner))
            elif isinstance(item, CheckedTurn):
                nodes.append(self._turn(item, owner))
            else:
                self.end_run(owner)
                nodes.append(self._module(item) if isinstance(item, CheckedModule) else self._union(item))
        return nodes

    def end_run(self, owner: _Owner) -> None:
        """Close the open run, if there is one."""
        if self._pieces:
            run = Run(
                index=len(self.runs),
                module=owner.path,
                pieces=tuple(self._pieces),
                cached=owner.cached,
                ending=self._ending,
            )
            self.runs.append(run)
            self._pieces.clear()
        self._ending = None

    def _turn(self, turn: CheckedTurn, owner: _Owner) -> LayoutNode:
        """Lay out a turn with its header and footer; an open turn has no footer."""
        start = self._position
        nodes = self._text_piece(LeafKind.HEADER, next(self._texts), turn.span)
        nodes += self.items(turn.children, owner)
        if not turn.open:
            nodes += self._text_piece(LeafKind.FOOTER, next(self._texts), turn.span)
        return LayoutNode(item=turn, start=start, stop=self._position, children=tuple(nodes))

    def _module(self, module: CheckedModule) -> LayoutNode:
        """Lay out a module and pad it to its reserve."""
        start = self._position
        if module.collection is not None:
            self.collections[module.path] = len(self.runs)
        owner = _Owner(module.path, module.cache)
        children = tuple(self.items(module.children, owner))
        self.end_run(owner)
        reserve = module.node.reserve
        if reserve is not None:
            if self._position > start + reserve:
                self.warnings.append(_over_reserve(module, self._position - start))
            self._position = max(self._position, start + reserve)
        node = LayoutNode(item=module, start=start, stop=self._position, children=children)
        self.modules[module.path] = node
        return node

    def _union(self, union: CheckedUnion) -> LayoutNode:
        """Lay out every member from the same start; the union stops at the end of its longest member."""
        start = stop = self._position
        members: list[LayoutNode] = []
        for member in union.members:
            self._position = start
            members.append(self._module(member))
            stop = max(stop, self._position)
        self._position = stop
        return LayoutNode(item=union, start=start, stop=stop, children=tuple(members))

    def _text_piece(self, kind: LeafKind, written: WrittenText, span: Span) -> list[LayoutNode | LayoutLeaf]:
        """Add a text to the open run; a text without tokens has no leaf."""
        self._ending = written.group
        if not written.token_ids:
            return []
        piece = TextPiece(start=self._position, token_ids=written.token_ids, text=written.text, span=span)
        return [self._add(kind, piece)]

    def _add_slot(self, parameter: CheckedParameter, owner: _Owner) -> LayoutLeaf:
        self._ending = None
        lead = next(self._leads)
        parameter = replace(parameter, lead=lead)
        default_ids = self._content(parameter, "default", parameter.default)
        placeholder_ids = self._content(parameter, "placeholder", parameter.placeholder)
        self._check_choices(parameter)
        slot = Slot(
            module=owner.path,
            parameter=parameter.name,
            lead=lead,
            start=self._position,
            stop=self._position + parameter.num_positions,
            filler_ids=default_ids if parameter.placeholder is None else placeholder_ids,
            default_ids=default_ids,
            span=parameter.span,
        )
        return self._add(LeafKind.SLOT, slot)

    def _add(self, kind: LeafKind, piece: RunPiece) -> LayoutLeaf:
        self._pieces.append(piece)
        self._position = piece.stop
        return LayoutLeaf(kind=kind, run=len(self.runs), piece=piece)

    def _content(self, parameter: CheckedParameter, kind: str, text: str | None) -> tuple[int, ...]:
        """Tokenize a default or placeholder; text longer than its slot is a fault, or is cut in the paper's dialect."""
        token_ids = self._tokenize(parameter.lead + (text or ""))
        if len(token_ids) > parameter.num_positions and kind == "placeholder" and parameter.cut_placeholder:
            span = place(parameter, "scaffold")
            end = ": it is cut to the slot"
            self.warnings.append(_too_long("PC511", parameter, kind, len(token_ids), span, end=end))
            return token_ids[: parameter.num_positions]
        if len(token_ids) > parameter.num_positions:
            self.faults.append(_too_long("PC502", parameter, kind, len(token_ids), parameter.span))
        return token_ids

    def _check_choices(self, parameter: CheckedParameter) -> None:
        """Warn if a choice is longer than its slot: a prompt that gives it is refused."""
        sizes = {each: len(self._tokenize(parameter.lead + each)) for each in parameter.choices}
        longest = max(sizes, key=sizes.__getitem__, default="")
        if longest != parameter.default and sizes.get(longest, 0) > parameter.num_positions:
            span = place(parameter, "choices")
            self.warnings.append(_too_long("PC516", parameter, "choice", sizes[longest], span, f" '{longest}'"))

    def _tokenize(self, text: str) -> tuple[int, ...]:
        token_ids = self._token_ids.get(text)
        if token_ids is None:
            token_ids = self._token_ids[text] = self._tokenizer.tokenize(text)
        return token_ids


def _runs_of(schema: CheckedSchema, runs: Sequence[Run]) -> dict[str, tuple[int, ...]]:
    """Return the indices of every module's own runs; a module without text has none."""
    indices: dict[str, list[int]] = {path: [] for path in ("", *schema.modules)}
    for run in runs:
        indices[run.module].append(run.index)
    return {path: tuple(own) for path, own in indices.items()}


def _too_long(
    code: str, parameter: CheckedParameter, kind: str, num_tokens: int, span: Span, name: str = "", end: str = ""
) -> Diagnostic:
    """Return the diagnostic for a default, a placeholder or a choice that is longer than its slot."""
    size = size_beside_slot(num_tokens, parameter.num_positions, parameter.lead)
    fix = f'write length="{num_tokens - len(parameter.lead)}" or shorten the {kind}'
    return diagnostic(code, f"the {kind}{name} of parameter '{parameter.name}' {size}{end}", span, fix)


def size_beside_slot(num_tokens: int | str, num_positions: int, lead: str) -> str:
    """Return a sentence's end with the size of a content and of its slot, in tokens."""
    with_space = " with the space before it" if lead else ""
    parts = f': length="{num_positions - 1}" and the space' if lead else ""
    return f"is {num_tokens} tokens{with_space}, its slot holds {num_positions}{parts}"


def _no_place(collection: CheckedModule) -> Diagnostic:
    message = f"collection '{collection.path}' needs closed positions: its members come in any order"
    fix = 'remove positions="fixed", or take a model whose keys can be moved'
    return diagnostic("PC515", message, collection.span, fix)


def _over_reserve(module: CheckedModule, num_positions: int) -> Diagnostic:
    message = f"module '{module.path}' takes {num_positions} positions, it reserves {module.node.reserve}"
    return diagnostic("PC505", message, module.span, f'write reserve="{num_positions}" or more, or leave reserve out')
