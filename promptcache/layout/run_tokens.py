"""Take the tokens of runs for one prompt: stored tokens, contents of slots, and the tokens next to changed slots.

docs/layout.md, "Slots", states the rules with an example.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from promptcache.diagnostics import Diagnostic, PromptError, diagnostic
from promptcache.language import FilledSlot, Selection
from promptcache.layout.encoding import KVPart
from promptcache.layout.lay_out import size_beside_slot
from promptcache.layout.pieces import Origin, Piece
from promptcache.layout.types import Run, Slot, TextPiece, Variant
from promptcache.tokenizer import Tokenizer, has_more_tokens

MAX_BOUNDARY_TOKENS = 4
"""Maximum number of tokens behind a changed slot that move to the end of its content."""


def run_pieces(
    runs: Iterable[tuple[Run, Variant | None]], selection: Selection, tokenizer: Tokenizer, *, moves: bool
) -> list[Piece]:
    """Return the tokens of runs as pieces, in order, where they are in the layout.

    A slot has the argument of the prompt, else its default, else no text. It is *changed* if this content differs from
    its filler, and in a run that is not cached. With `moves`, the tokens behind a changed slot move to the end of its
    content:

    - Slots of a run with no token between them form a group, also if all tokens between them are boundary tokens. From
      the first changed slot on, the contents of the group follow one another and are new.
    - The boundary tokens (`num_boundary_tokens`) of the text behind the group follow its last content. They are new,
      and the stored ones are left out. The text may be that of the next run.

    Args:
        runs: In document order, each with the variant to reuse; None for a run that is not cached, or has no tokens
            while it is encoded.

    Raises:
        PromptError: Every argument that has more tokens than its slot (PC501).
    """
    arguments = {(each.module, each.parameter): each for each in selection.arguments}
    found, faults = list[Piece](), list[Diagnostic]()
    behind: int | None = None  # position behind the content of a changed slot, while no text follows
    for run, variant in runs:
        if isinstance(run.pieces[0], Slot):
            behind = None  # boundary tokens are text
        start = stop = 0  # range of encoding tokens to reuse next; it never extends across new tokens
        for piece, after in zip_longest(run.pieces, run.pieces[1:]):
            if isinstance(piece, TextPiece):
                token_ids, num_moved = piece.token_ids, 0
                if behind is not None:
                    num_moved = num_boundary_tokens(piece, tokenizer)
                    origin = Origin.REPAIRED if run.cached else Origin.UNCACHED
                    found.append(
                        Piece(token_ids=token_ids[:num_moved], start=behind, origin=origin, run=run, index=stop)
                    )
                    is_in_group = num_moved == len(token_ids) and isinstance(after, Slot)
                    behind = behind + num_moved if is_in_group else None
                    start = stop + num_moved
                if not run.cached:
                    found.append(
                        Piece(
                            token_ids=token_ids[num_moved:],
                            start=piece.start + num_moved,
                            origin=Origin.UNCACHED,
                            run=run,
                            index=stop + num_moved,
                        )
                    )
                stop += len(token_ids)
                continue
            token_ids, origin = _content(piece, arguments.get((piece.module, piece.parameter)), tokenizer, faults)
            num_fillers = len(piece.token_ids)
            if behind is None and run.cached and token_ids == piece.token_ids:
                stop += num_fillers
                continue
            found += _stored(run, variant, start, stop)
            start = stop = stop + num_fillers
            position = piece.start if behind is None else behind
            found.append(Piece(token_ids=token_ids, start=position, origin=origin, run=run, parameter=piece.parameter))
            behind = position + len(token_ids) if moves else None
        found += _stored(run, variant, start, stop)
    if faults:
        raise PromptError(faults)
    return [piece for piece in found if piece.token_ids]


def _content(
    slot: Slot, argument: FilledSlot | None, tokenizer: Tokenizer, faults: list[Diagnostic]
) -> tuple[tuple[int, ...], Origin]:
    """Return the content of a slot; add a fault if its argument is too long."""
    if argument is None:
        return slot.default_ids, Origin.DEFAULT
    length = slot.stop - slot.start
    is_long = has_more_tokens(tokenizer, argument.text, length)
    token_ids = () if is_long else tokenizer.tokenize(slot.lead + argument.text)
    if is_long or len(token_ids) > length:
        num_tokens = length + 1 if is_long else len(token_ids)
        where = f" of module '{slot.module}'" if slot.module else ""
        size = size_beside_slot(f"{num_tokens}{' or more' * is_long}", length, slot.lead)
        fix = "shorten it, or " + ("raise length" if is_long else f'write length="{num_tokens - len(slot.lead)}"')
        related = ((slot.span, "the slot is declared here"),)
        faults.append(diagnostic("PC501", f"argument '{slot.parameter}'{where} {size}", argument.span, fix, related))
    return token_ids, Origin.ARGUMENT


def num_boundary_tokens(piece: TextPiece, tokenizer: Tokenizer) -> int:
    """Return how many tokens at the start of a text move to a content before it.

    These are the first token and those after it, up to the next one that begins with whitespace.
    """
    head = piece.token_ids[:MAX_BOUNDARY_TOKENS]
    for num_tokens in range(1, len(head)):
        written = tokenizer.detokenize(head[:num_tokens])
        if piece.text.startswith(written) and piece.text[len(written) :][:1].isspace():
            return num_tokens  # a token may also begin inside a character
    return len(head)


def _stored(run: Run, variant: Variant | None, start: int, stop: int) -> list[Piece]:
    """Return the tokens `[start, stop)` of an encoding as a piece, if there are any."""
    if start == stop or variant is None:
        return []
    whole = variant.encoding.whole
    part = whole if stop - start == whole.num_tokens else KVPart(variant.encoding, start, stop)
    return [Piece(token_ids=part.token_ids, start=part.first, source=part, run=run, index=start)]
