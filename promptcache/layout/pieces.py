"""The plan of one prompt as a list of pieces: stored tokens and new tokens, in the order of their positions.

Every change of a plan maps pieces to pieces: repair, an answer that goes on, ordinary prefill.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain, groupby, pairwise
from operator import attrgetter
from typing import Any

from promptcache.diagnostics import Diagnostic, Short
from promptcache.language import Repair, RepairKind, Selection
from promptcache.layout.encoding import KVPart, RequestTokens, num_shared
from promptcache.layout.types import Layout, Level, Run
from promptcache.tokenizer import Tokenizer


class Origin(StrEnum):
    """Origin of new tokens in a request. Tokens that are `repaired` or `last` are stored, and computed again."""

    ARGUMENT = "argument"
    DEFAULT = "default"
    UNCACHED = "uncached"
    TEXT = "text"
    HEADER = "header"
    FOOTER = "footer"
    REPAIRED = "repaired"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Piece(Short):
    """Tokens of a request that are all stored, or all new; never empty.

    Attributes:
        start: Position of the first token. New tokens are at consecutive positions; stored ones are where `source` is.
        source: Their stored KV; None for new tokens.
        origin: Origin of new tokens; None for stored ones.
        run: The run of the layout that they belong to; None for text that the prompt adds.
        index: Index of the first token among those of the run; None for contents of slots and added text.
        parameter: The parameter that an argument or default fills.
    """

    token_ids: tuple[int, ...]
    start: int
    source: KVPart | None = None
    origin: Origin | None = None
    run: Run | None = None
    index: int | None = None
    parameter: str | None = None

    @property
    def module(self) -> str:
        """Path of the module; "" for the schema's text outside modules and for text that the prompt adds."""
        return "" if self.run is None else self.run.module

    @property
    def position_ids(self) -> Sequence[int]:
        """Position of each token, strictly increasing."""
        if self.source is not None:
            return self.source.position_ids
        return range(self.start, self.start + len(self.token_ids))

    @property
    def stop(self) -> int:
        """First position after the tokens."""
        return self.start + len(self.token_ids) if self.source is None else self.source.last + 1

    def cut(self, start: int, stop: int) -> Piece:
        """Return the tokens `[start, stop)` of a stored piece."""
        assert self.source is not None, "only stored pieces are cut"
        assert self.index is not None, "stored pieces belong to a run"
        source = replace(self.source, start=self.source.start + start, stop=self.source.start + stop)
        index = self.index + start
        return replace(self, token_ids=self.token_ids[start:stop], start=source.first, source=source, index=index)


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Short):
    """The tokens of one prompt with their positions.

    Attributes:
        pieces: In the order of positions; together they hold every token of the prompt once. The last piece is new.
            Generation continues right after it, at `stop`.
        first_answer: Position of the first token of the first answer in the conversation that the prompt adds; None
            if there is none.
        is_chosen: Whether the tokens that `repair="attended-K"` computes again are chosen.
        warnings: Where the text is not what the chat template writes for the whole conversation.
    """

    selection: Selection
    layout: Layout = field(repr=False)
    pieces: tuple[Piece, ...]
    repair: Repair
    first_answer: int | None = None
    is_chosen: bool = False
    warnings: tuple[Diagnostic, ...] = ()

    @cached_property
    def tokens(self) -> RequestTokens:
        """All tokens of the prompt, without their origins."""
        new = self.new
        return RequestTokens(
            parts=tuple(piece.source for piece in self.pieces if piece.source is not None),
            token_ids=tuple(token_id for piece in new for token_id in piece.token_ids),
            position_ids=tuple(position for piece in new for position in piece.position_ids),
        )

    @property
    def reused(self) -> tuple[Piece, ...]:
        """The pieces whose KV is stored."""
        return tuple(piece for piece in self.pieces if piece.source is not None)

    @property
    def new(self) -> tuple[Piece, ...]:
        """The pieces that this request prefills."""
        return tuple(piece for piece in self.pieces if piece.source is None)

    @cached_property
    def level(self) -> Level:
        """`exact` if and only if every reused token attended to exactly the used tokens at lower positions."""
        return Level.EXACT if num_exact(self.pieces) == len(self.pieces) else Level.MODULAR

    @property
    def stop(self) -> int:
        """Position of the first generated token."""
        return self.pieces[-1].stop

    @property
    def num_reused_tokens(self) -> int:
        """Number of tokens whose KV comes from the store."""
        return sum(len(piece.token_ids) for piece in self.reused)

    @property
    def num_reused_tokens_by_module(self) -> dict[str, int]:
        """Number of tokens whose KV comes from the store, for each module in use, in position order."""
        found: dict[str, int] = {}
        for piece in self.reused:
            found[piece.module] = found.get(piece.module, 0) + len(piece.token_ids)
        return found

    @property
    def num_new_tokens(self) -> int:
        """Number of tokens that this request prefills."""
        return sum(len(piece.token_ids) for piece in self.new)

    @property
    def repaired(self) -> tuple[Piece, ...]:
        """The new pieces whose tokens are stored, but in another context."""
        return tuple(piece for piece in self.pieces if piece.origin is Origin.REPAIRED)

    @property
    def awaits_choice(self) -> bool:
        """Whether `repair` chooses the stored tokens to compute again by attention, and has not yet."""
        return self.repair.kind is RepairKind.ATTENDED and self.level is Level.MODULAR and not self.is_chosen

    @property
    def question(self) -> RequestTokens:
        """The stored tokens of the prompt, and the new ones up to the first answer in its conversation."""
        tokens, stop = self.tokens, self.first_answer
        if stop is None:
            return tokens
        number = bisect_left(tokens.position_ids, stop)
        return replace(tokens, token_ids=tokens.token_ids[:number], position_ids=tokens.position_ids[:number])

    @property
    def num_repaired_tokens(self) -> int:
        """Number of new tokens that are stored, but in another context."""
        return sum(len(piece.token_ids) for piece in self.repaired)

    @property
    def counts(self) -> dict[str, Any]:
        """The numbers of its tokens, with its level and repair, as data."""
        return {
            "level": self.level,
            "repair": str(self.repair),
            "num_reused_tokens": self.num_reused_tokens,
            "num_new_tokens": self.num_new_tokens,
            "num_repaired_tokens": self.num_repaired_tokens,
            "next_position": self.stop,
        }

    def recompute(self, positions: Container[int]) -> Plan:
        """Return a plan that computes the stored tokens at these positions again. All tokens stay where they are."""
        return replace(self, pieces=recomputed(self.pieces, positions))

    def with_choice(self, positions: Container[int]) -> Plan:
        """Return the plan that computes the tokens again which `repair="attended-K"` has chosen."""
        return replace(self.recompute(positions), is_chosen=True)

    def plain(self) -> Plan:
        """Return a plan that computes all tokens."""
        return self.recompute(range(self.stop))

    def continued(self, token_ids: Sequence[int]) -> Plan:
        """Return the plan of a prompt with the first tokens of its answer, behind which generation continues."""
        if not token_ids:
            return self
        answer = Piece(token_ids=tuple(token_ids), start=self.stop, origin=Origin.TEXT)
        return replace(self, pieces=(*self.pieces, answer))


def recomputed(
    pieces: Iterable[Piece], positions: Container[int], origin: Origin = Origin.REPAIRED
) -> tuple[Piece, ...]:
    """Return pieces with the stored tokens at some positions as new ones; a gap between positions divides these."""
    found: list[Piece] = []
    for piece in pieces:
        places = () if piece.source is None else piece.position_ids
        shifts = [place - index if place in positions else None for index, place in enumerate(places)]
        if all(shift is None for shift in shifts):
            found.append(piece)
            continue
        start = 0
        for shift, group in groupby(shifts):
            stop = start + len([*group])
            stretch = piece.cut(start, stop)
            found.append(stretch if shift is None else replace(stretch, source=None, origin=origin))
            start = stop
    return tuple(found)


def num_exact(pieces: Sequence[Piece]) -> int:
    """Return the number of pieces before the first stored one that has not attended to exactly the tokens below it.

    Args:
        pieces: In position order; the range of an encoding is split only at tokens left out or at new tokens.

    The tokens of an encoding attended to its whole context and to all lower tokens of the encoding. So a stored piece
    is exact under three conditions:

    - No new token is below its last one.
    - It begins its encoding, and stands where it was encoded.
    - The context of its encoding is the list of used parts before it.

    Otherwise the encoding attended to tokens that are not in use (a superseded variant, a filler), or did not attend
    to tokens that are.
    """
    before: list[KVPart] = []
    for index, piece in enumerate(pieces):
        part = piece.source
        if part is None:
            continue
        context = part.encoding.context
        is_first = part.start == part.shift == 0 and len(context) == index == len(before)
        if not is_first or context != tuple(before):
            return index
        before.append(part)
    return len(pieces)


def positions_to_repair(pieces: Sequence[Piece], repair: Repair, weights: Sequence[float] = ()) -> frozenset[int]:
    """Return the positions of the stored tokens of a prompt that are computed again.

    Args:
        pieces: In position order.
        repair: `all` computes every token again, beginning with the first one that has not attended to exactly the
            tokens in use before it. `attended-K` computes again those from there on that weigh most: K for each run
            that has some. `first-K` computes the first K tokens of each run again, beginning with the first run whose
            context is not exactly the tokens in use before it. Others change nothing here.
        weights: For `attended-K`, how much the new tokens attend to each position. Without them, it changes nothing.
    """
    index = num_exact(pieces)
    is_known = repair.kind in (RepairKind.FIRST, RepairKind.ALL) or (repair.kind is RepairKind.ATTENDED and weights)
    if not is_known or index == len(pieces):
        return frozenset()
    first = pieces[index]
    assert first.source is not None, "a piece that is not exact is stored"
    before = tuple(each.source for each in pieces[:index] if each.run is not first.run)
    if repair.kind is RepairKind.FIRST and first.source.encoding.context == before:  # the context of its run is exact
        index = next((later for later in range(index, len(pieces)) if pieces[later].run is not first.run), len(pieces))
    candidates, found = list[int](), list[int]()
    stored = (piece for piece in pieces[index:] if piece.source is not None)
    for _, group in groupby(stored, key=attrgetter("run.index")):
        positions = [position for piece in group for position in piece.position_ids]
        candidates += positions
        found += positions[: repair.num_again(len(positions))]
    if repair.kind is RepairKind.ATTENDED:
        found = sorted(candidates, key=lambda position: -weights[position])[: len(found)]  # equal ones stay in order
    return frozenset(found)


def piece_texts(plan: Plan, tokenizer: Tokenizer) -> list[str]:
    """Return the text of each piece of a plan, control tokens included.

    Some tokenizers decode a token differently next to other tokens (a character split in two, spaces between
    words). In this case, a piece gets the text that its tokens add to the text of all tokens before them.
    """
    token_ids = [piece.token_ids for piece in plan.pieces]
    text = tokenizer.detokenize([*chain.from_iterable(token_ids)])
    alone = [tokenizer.detokenize(part) for part in token_ids]
    if "".join(alone) == text:
        return alone
    cuts, seen = [0], list[int]()
    for part in token_ids[:-1]:
        seen.extend(part)
        so_far = tokenizer.detokenize(seen)
        cuts.append(max(cuts[-1], num_shared(so_far, text)))
    return [text[start:stop] for start, stop in pairwise([*cuts, len(text)])]
