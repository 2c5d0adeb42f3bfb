"""Take the tokens of runs for one prompt: stored tokens, contents of slots, and the tokens next to changed slots.

docs/layout.md, "Slots", states the rules with an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from promptcache.diagnostics import Diagnostic, diagnostic
from promptcache.language import FilledSlot, Selection
from promptcache.layout.encoding import KVPart
from promptcache.layout.lay_out import size_beside_slot
from promptcache.layout.pieces import Origin, Piece
from promptcache.layout.types import Run, Slot, TextPiece, Variant
from promptcache.tokenizer import Tokenizer, has_more_tokens

MAX_BOUNDARY_TOKENS = 4
"""Maximum number of tokens behind a changed slot that move to the end of its content."""


@dataclass(frozen=True, slots=True)
class SlotContent:
    """Content of a slot in one request."""

    token_ids: tuple[int, ...]
    origin: Origin


class SlotContents:
    """Contents of the slots in one request: the argument, else the default, else no text."""

    def __init__(self, selection: Selection, tokenizer: Tokenizer) -> None:
        self.faults: list[Diagnostic] = []
        self._tokenizer = tokenizer
        self._arguments: Mapping[tuple[str, str], FilledSlot] = {
            (argument.module, argument.parameter): argument for argument in selection.arguments
        }

    def of(self, slot: Slot) -> SlotContent:
        """Return the content of `slot`; record a fault if its argument is too long."""
        argument = self._arguments.get((slot.module, slot.parameter))
        if argument is None:
            return SlotContent(slot.default_ids, Origin.DEFAULT)
        length = slot.stop - slot.start
        if has_more_tokens(self._tokenizer, argument.text, length):
            self.faults.append(_over_slot(argument, slot, length + 1, " or more"))
            return SlotContent((), Origin.ARGUMENT)
        token_ids = self._tokenizer.tokenize(slot.lead + argument.text)
        if len(token_ids) > length:
            self.faults.append(_over_slot(argument, slot, len(token_ids)))
        return SlotContent(token_ids, Origin.ARGUMENT)

    def num_boundary_tokens(self, piece: TextPiece) -> int:
        """Return how many tokens at the start of a text move to a content before it.

        These are the first token and those after it, up to the next one that begins with whitespace.
        """
        head = piece.token_ids[:MAX_BOUNDARY_TOKENS]
        for num_tokens in range(1, len(head)):
            written = self._tokenizer.detokenize(head[:num_tokens])
            if piece.text.startswith(written) and piece.text[len(written) :][:1].isspace():
                return num_tokens  # a token may also begin inside a character
        return len(head)


class RunTokens:
    """Tokens of the runs in use as pieces, in order, where they are in the layout.

    A slot is *changed* if its content differs from its filler, and in a run that is not cached. With `moves`, the
    tokens behind a changed slot move to the end of its content:

    - Slots of a run with no token between them form a group, also if all tokens between them are boundary tokens. From
      the first changed slot on, the contents of the group follow one another and are new.
    - The boundary tokens (`num_boundary_tokens`) of the text behind the group follow its last content. They are new,
      and the stored ones are left out. The text may be that of the next run.
    """

    def __init__(self, contents: SlotContents, *, moves: bool) -> None:
        self.pieces: list[Piece] = []
        self._contents = contents
        self._moves = moves
        self._behind: int | None = None  # position behind the content of a changed slot, while no text follows

    def add(self, run: Run, variant: Variant | None) -> None:
        """Add the tokens of a run.

        Args:
            variant: The variant to reuse; None if the run is not cached, or has no tokens while it is encoded.
        """
        if isinstance(run.pieces[0], Slot):
            self._behind = None  # boundary tokens are text
        start = stop = 0  # range of encoding tokens to reuse next
        for piece, after in zip_longest(run.pieces, run.pieces[1:]):
            if isinstance(piece, TextPiece):
                moved = self._move_boundary(piece, run, stop, before_slot=isinstance(after, Slot))
                if moved:
                    self._add_range(run, variant, start, stop)
                    start = stop + moved
                if not run.cached:
                    self._add_text(piece.start + moved, piece.token_ids[moved:], Origin.UNCACHED, run, stop + moved)
                stop += len(piece.token_ids)
                continue
            content = self._contents.of(piece)
            num_fillers = len(piece.filler_ids)
            if self._behind is None and run.cached and content.token_ids == piece.filler_ids:
                stop += num_fillers
                continue
            self._add_range(run, variant, start, stop)  # a range never extends across new tokens
            start = stop = stop + num_fillers
            position = piece.start if self._behind is None else self._behind
            self._add_content(position, content, run, piece)
            if self._moves:
                self._behind = position + len(content.token_ids)
        self._add_range(run, variant, start, stop)

    def _move_boundary(self, piece: TextPiece, run: Run, index: int, *, before_slot: bool) -> int:
        """Add the boundary tokens of `piece` behind the content before it, if there is one; return their number.

        If no token of a text before a slot is left, the slot belongs to the group.
        """
        if self._behind is None:
            return 0
        num_tokens = self._contents.num_boundary_tokens(piece)
        origin = Origin.REPAIRED if run.cached else Origin.UNCACHED
        self._add_text(self._behind, piece.token_ids[:num_tokens], origin, run, index)
        is_whole = num_tokens == len(piece.token_ids)
        self._behind = self._behind + num_tokens if is_whole and before_slot else None
        return num_tokens

    def _add_content(self, start: int, content: SlotContent, run: Run, slot: Slot) -> None:
        if content.token_ids:
            self.pieces.append(
                Piece(
                    token_ids=content.token_ids, start=start, origin=content.origin, run=run, parameter=slot.parameter
                )
            )

    def _add_text(self, start: int, token_ids: tuple[int, ...], origin: Origin, run: Run, index: int) -> None:
        if token_ids:
            self.pieces.append(Piece(token_ids=token_ids, start=start, origin=origin, run=run, index=index))

    def _add_range(self, run: Run, variant: Variant | None, start: int, stop: int) -> None:
        if start < stop and variant is not None:
            whole = variant.encoding.whole
            part = whole if stop - start == whole.num_tokens else KVPart(variant.encoding, start, stop)
            self.pieces.append(Piece(token_ids=part.token_ids, start=part.first, source=part, run=run, index=start))


def _over_slot(argument: FilledSlot, slot: Slot, num_tokens: int, more: str = "") -> Diagnostic:
    where = f" of module '{slot.module}'" if slot.module else ""
    size = size_beside_slot(f"{num_tokens}{more}", slot.stop - slot.start, slot.lead)
    fix = "shorten it, or raise length" if more else f'shorten it, or write length="{num_tokens - len(slot.lead)}"'
    related = ((slot.span, "the slot is declared here"),)
    return diagnostic("PC501", f"argument '{slot.parameter}'{where} {size}", argument.span, fix, related)
