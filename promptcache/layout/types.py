"""Types of a layout. `lay_out` and `run_variants` build them.

All ranges are half-open. All positions are absolute position IDs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import NoReturn, TypeAlias

from promptcache.diagnostics import Diagnostic, InvalidValue, Short, Span, shown
from promptcache.language import CheckedModule, CheckedSchema, CheckedTurn, CheckedUnion, Placement
from promptcache.layout.encoding import Encoding
from promptcache.tokenizer import Before, Frame


class Level(StrEnum):
    """Relation of a cached answer to an uncached one (docs/layout.md, "Levels")."""

    EXACT = "exact"
    MODULAR = "modular"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise InvalidValue(f"{shown(value)} is no Level: one of {', '.join(cls)} is expected")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TextPiece(Short):
    """Piece of a run that is no slot: text of a module, the header or footer of a turn, or BOS."""

    start: int
    token_ids: tuple[int, ...]
    text: str
    span: Span

    @property
    def stop(self) -> int:
        """First position after the tokens."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Slot(Short):
    """Positions of a parameter. While its run is encoded, its filler, `token_ids`, occupies the first of them.

    The content of a slot is `lead`, a space or nothing, and then an argument or default. The token IDs include `lead`.
    """

    module: str
    parameter: str
    lead: str
    start: int
    stop: int
    token_ids: tuple[int, ...]
    default_ids: tuple[int, ...]
    span: Span


RunPiece: TypeAlias = TextPiece | Slot


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TextGroup(Short):
    """Adjacent texts that are tokenized as one, and what stands before them. Texts of a chat template are `Markup`."""

    texts: tuple[str, ...]
    before: Before


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run(Short):
    """Text of one module, without other modules or unions between: the unit that is encoded.

    `module` is its owner ("" is the root, which is always present). `[start, stop)` covers all pieces, slots
    whole. A run with `cached=False` is prefilled in every request. A run has at least one piece. `ending` are the texts
    behind its last slot; None if it ends with a slot, or with BOS that the tokenizer adds.
    """

    index: int
    module: str
    pieces: tuple[RunPiece, ...]
    cached: bool
    ending: TextGroup | None = None

    @property
    def start(self) -> int:
        """First position."""
        return self.pieces[0].start

    @property
    def stop(self) -> int:
        """First position after the last piece."""
        return self.pieces[-1].stop

    @property
    def parent(self) -> str:
        """Path of the module around its module: for a member, the path of its collection."""
        return self.module.rpartition("/")[0]

    @property
    def slots(self) -> Iterator[Slot]:
        """Slots among the pieces, in position order."""
        return (piece for piece in self.pieces if isinstance(piece, Slot))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens to encode, slot fillers included."""
        return tuple(chain.from_iterable(piece.token_ids for piece in self.pieces))

    @property
    def places(self) -> tuple[int, ...]:
        """The position of each of these tokens in the layout."""
        ranges = (range(piece.start, piece.start + len(piece.token_ids)) for piece in self.pieces)
        return tuple(chain.from_iterable(ranges))


class LeafKind(StrEnum):
    """Kind of a leaf in the tree of a layout."""

    BOS = "bos"
    HEADER = "header"
    FOOTER = "footer"
    TEXT = "text"
    SLOT = "slot"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayoutLeaf(Short):
    """Piece of a run in the tree of a layout; `run` is the index of the run."""

    kind: LeafKind
    run: int
    piece: RunPiece

    @property
    def start(self) -> int:
        """First position."""
        return self.piece.start

    @property
    def stop(self) -> int:
        """First position after the piece."""
        return self.piece.stop

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the piece while its run is encoded."""
        return len(self.piece.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayoutNode(Short):
    """Module, union or turn in the tree of a layout.

    Attributes:
        item: The declaration in the schema.
        start: The first position.
        stop: The first position after all content, the reserve of a module included.
        children: In document order. The members of a union all begin at `start`.
    """

    item: CheckedModule | CheckedUnion | CheckedTurn
    start: int
    stop: int
    children: tuple[LayoutNode | LayoutLeaf, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchemaTurn(Short):
    """Turn of a schema, the path of its module ("" is the root), and what the chat template writes around it."""

    turn: CheckedTurn
    owner: str
    frame: Frame


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Layout(Short):
    """Position IDs of every run and slot of a schema under one tokenizer.

    Attributes:
        tree: What begins every prompt, then the schema's items in document order, each with its positions.
        modules: The node of each module, by path.
        runs: In document order; `runs[i].index == i`. Run 0 is the beginning, if there is one (its owner is "").
        collections: For each collection, by path, the number of runs before it.
        runs_of: For each module path and "", the indices of its own runs, in document order.
        stop: The highest `stop` of any run: the number of positions that the schema needs.
        placement: Where requests have cached text.
        max_positions: Positions of the model, if they are known. An encoding behind the module before it that needs
            more is left out.
        has_bos: Whether run 0 is the beginning of every prompt: BOS, and for schemas with turns also what the chat
            template writes before the first one.
        preamble: The text of the beginning that the chat template writes; "" without turns.
        turns: The schema's turns in document order.
        warnings: Problems of tokens and positions that do not prevent the use of the layout.
    """

    schema: CheckedSchema
    tree: tuple[LayoutNode | LayoutLeaf, ...]
    modules: Mapping[str, LayoutNode]
    runs: tuple[Run, ...]
    collections: Mapping[str, int]
    runs_of: Mapping[str, tuple[int, ...]]
    stop: int
    placement: Placement
    max_positions: int | None
    has_bos: bool
    preamble: str = ""
    turns: tuple[SchemaTurn, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()


class VariantKind(StrEnum):
    """Kind of a variant: what a run attends to while it is encoded.

    `PLAIN`: what is guaranteed with its module, or its own text only. `PREVIOUS`: the module before it in a prompt as
    well. `SCAFFOLD`: the modules of a scaffold.
    """

    PLAIN = "plain"
    PREVIOUS = "previous"
    SCAFFOLD = "scaffold"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Variant(Short):
    """Variant of a cached run: its encoding under one context.

    A run has a plain variant, and may have others in scaffolds, and behind the module before it in a prompt.

    Attributes:
        index: Index in the schema's tuple of variants. -1 for one behind the module before it in a prompt.
        run: Index of the run in the layout.
        kind: What the context is. A scaffold may use a variant of another kind.
        scaffolds: Names of the scaffolds that use this variant; empty for the run's plain variant.
        sees: Indices of the variants whose encodings are the context of this one. All are lower than `index`, if that
            is in the tuple.
        encoding: The tokens to encode with their context.
    """

    index: int
    run: int
    kind: VariantKind
    scaffolds: tuple[str, ...]
    sees: tuple[int, ...]
    encoding: Encoding

    def module(self, layout: Layout) -> str:
        """Return the path of the module that the run belongs to; "" is the root."""
        return layout.runs[self.run].module
