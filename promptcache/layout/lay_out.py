"""Assign positions to every run and slot of a checked schema, in one walk in document order.

The walk builds the runs and the tree of the layout together. `run_variants` computes the context of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

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
from promptcache.layout.schema_texts import SchemaTexts, WrittenText, turn_texts
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
    preamble, turns, warnings = turn_texts(schema, Conversations(tokenizer))
    written = SchemaTexts(schema, tokenizer, preamble, turns)
    walk = _Walk(tokenizer, written)
    tree = walk.tree(schema)
    if walk.faults:
        raise SchemaError(dict.fromkeys(walk.faults))  # a file that is included twice reports its faults twice
    placement = schema.positions or placement
    if placement is Placement.FIXED and walk.collections:
        fix = 'remove positions="fixed", or take a model whose keys can be moved'
        raise SchemaError(
            diagnostic(
                "PC515",
                f"collection '{path}' needs closed positions: its members come in any order",
                schema.modules[path].span,
                fix,
            )
            for path in walk.collections
        )
    runs_of: dict[str, list[int]] = {path: [] for path in ("", *schema.modules)}
    for run in walk.runs:
        runs_of[run.module].append(run.index)
    return Layout(
        schema=schema,
        tree=tree,
        modules=walk.modules,
        runs=tuple(walk.runs),
        collections=walk.collections,
        runs_of={path: tuple(own) for path, own in runs_of.items()},
        stop=max((run.stop for run in walk.runs), default=0),
        placement=placement,
        max_positions=max_positions,
        has_bos=bool(written.beginning.token_ids),
        preamble=preamble,
        turns=turns,
        warnings=tuple(dict.fromkeys((*walk.warnings, *warnings))),
    )


class _Walk:
    """One walk over a schema: the current position, and the pieces of the open run.

    The owner of a text is its module; None for the schema's text outside modules.
    """

    def __init__(self, tokenizer: Tokenizer, written: SchemaTexts) -> None:
        self.runs: list[Run] = []
        self.modules: dict[str, LayoutNode] = {}
        self.collections: dict[str, int] = {}
        self.faults: list[Diagnostic] = []
        self.warnings: list[Diagnostic] = []
        self._tokenize = cache(tokenizer.tokenize)
        self._written = written
        self._texts = iter(written.texts)
        self._leads = iter(written.leads)
        self._pieces: list[RunPiece] = []
        self._ending: TextGroup | None = None  # of the texts so far
        self._position = 0

    def tree(self, schema: CheckedSchema) -> tuple[LayoutNode | LayoutLeaf, ...]:
        """Lay out what begins every prompt, as a run of its own, and then the items of a schema."""
        beginning = self._text_piece(LeafKind.BOS, self._written.beginning, schema.source.span)
        self._end_run(None)
        nodes = self._items(schema.children, None)
        self._end_run(None)
        return (*beginning, *nodes)

    def _items(self, items: Sequence[CheckedItem], owner: CheckedModule | None) -> list[LayoutNode | LayoutLeaf]:
        """Lay out the items inside `owner`, in document order."""
        nodes: list[LayoutNode | LayoutLeaf] = []
        for item in items:
            if isinstance(item, FinalText):
                nodes += self._text_piece(LeafKind.TEXT, next(self._texts), item.span)
            elif isinstance(item, CheckedParameter):
                nodes.append(self._add_slot(item, owner))
            elif isinstance(item, CheckedTurn):
                start = self._position
                inside = self._text_piece(LeafKind.HEADER, next(self._texts), item.span)
                inside += self._items(item.children, owner)
                if not item.open:
                    inside += self._text_piece(LeafKind.FOOTER, next(self._texts), item.span)
                nodes.append(LayoutNode(item=item, start=start, stop=self._position, children=tuple(inside)))
            else:
                self._end_run(owner)
                nodes.append(self._module(item) if isinstance(item, CheckedModule) else self._union(item))
        return nodes

    def _end_run(self, owner: CheckedModule | None) -> None:
        """Close the open run, if there is one."""
        if self._pieces:
            self.runs.append(
                Run(
                    index=len(self.runs),
                    module="" if owner is None else owner.path,
                    pieces=tuple(self._pieces),
                    cached=owner is None or owner.cache,
                    ending=self._ending,
                )
            )
            self._pieces.clear()
        self._ending = None

    def _module(self, module: CheckedModule) -> LayoutNode:
        """Lay out a module and pad it to its reserve."""
        start = self._position
        if module.collection is not None:
            self.collections[module.path] = len(self.runs)
        children = tuple(self._items(module.children, module))
        self._end_run(module)
        reserve = module.node.reserve
        if reserve is not None:
            if (needed := self._position - start) > reserve:
                message = f"module '{module.path}' takes {needed} positions, it reserves {reserve}"
                fix = f'write reserve="{needed}" or more, or leave reserve out'
                self.warnings.append(diagnostic("PC505", message, module.span, fix))
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

    def _add_slot(self, parameter: CheckedParameter, owner: CheckedModule | None) -> LayoutLeaf:
        self._ending = None
        lead = next(self._leads)
        parameter = replace(parameter, lead=lead)
        default_ids = self._content(parameter, "default", parameter.default)
        placeholder_ids = self._content(parameter, "placeholder", parameter.placeholder)
        sizes = {each: len(self._tokenize(lead + each)) for each in parameter.choices}
        longest = max(sizes, key=sizes.__getitem__, default="")
        if longest != parameter.default and sizes.get(longest, 0) > parameter.num_positions:
            span = place(parameter, "choices")  # a prompt that gives this choice is refused
            self.warnings.append(_too_long("PC516", parameter, "choice", sizes[longest], span, f" '{longest}'"))
        slot = Slot(
            module="" if owner is None else owner.path,
            parameter=parameter.name,
            lead=lead,
            start=self._position,
            stop=self._position + parameter.num_positions,
            token_ids=default_ids if parameter.placeholder is None else placeholder_ids,
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
