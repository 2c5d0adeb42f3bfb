"""The seam between the cached text of a prompt and the text that the prompt adds.

A tokenizer may join the last characters of a text with what follows. So the last cached tokens are left out where the
added text changes them, and the prompt adds their text in other tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from promptcache.layout.encoding import num_shared
from promptcache.layout.pieces import Piece
from promptcache.layout.types import Layout, TextGroup
from promptcache.tokenizer import Before, Markup, Tokenizer

_TAIL = 200  # characters that are tokenized again


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """The end of the text of a schema in one prompt.

    Attributes:
        before: What its last token is.
        token_ids: Its last tokens, if they are reused.
        texts: Their text; None if the last text is not cached, or is the content of a slot.
    """

    before: Before
    token_ids: tuple[int, ...] = ()
    texts: TextGroup | None = None

    def join(self, texts: Sequence[str], tokenizer: Tokenizer) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Return the tokens of texts that follow, and how many of the last reused tokens they replace.

        Args:
            texts: Adjacent texts. The first of them gets the tokens that replace others.
        """
        apart = tokenizer.tokenize_parts(texts, self.before)
        if self.texts is None or not any(self.texts.texts) or not any(texts):
            return 0, apart
        length = sum(map(len, self.texts.texts))
        tail = tuple(sliced(self.texts.texts, max(0, length - _TAIL), length))
        known = _joined(tokenizer.tokenize_parts(tail, self.texts.before))
        found = tokenizer.tokenize_parts((*tail, *texts), self.texts.before)
        kept, (first, *others) = _joined(found[: len(tail)]), found[len(tail) :]
        num_kept = num_shared(known, kept)
        num_replaced = len(known) - num_kept
        num_known = num_shared(known[::-1], self.token_ids[::-1])
        if num_known < min(num_replaced + 1, len(known), max(num_replaced, len(self.token_ids))):
            return 0, apart  # the tail begins within a word, or more than the reused tokens changes
        return num_replaced, (kept[num_kept:] + first, *others)


def seam_of(pieces: Sequence[Piece], layout: Layout, tokenizer: Tokenizer) -> Seam:
    """Return the end of the text of a schema in one prompt; a text behind BOS alone is at a start."""
    if not pieces or (layout.has_bos and not layout.turns and len(pieces) == 1 and pieces[0].run is layout.runs[0]):
        return Seam(before=Before.START)
    last = pieces[-1]
    token_ids = last.token_ids[-4 * _TAIL :]  # a character has up to four bytes
    before = Before.CONTROL if token_ids[-1] in tokenizer.control_ids else Before.TEXT
    texts = None if last.source is None or last.run is None else last.run.ending
    return Seam(before=before, token_ids=token_ids, texts=texts)


def without_last(pieces: Sequence[Piece], num_tokens: int) -> tuple[Piece, ...]:
    """Return pieces without the last tokens of the last one, which is stored."""
    if not num_tokens:
        return tuple(pieces)
    *others, last = pieces
    num_left = len(last.token_ids) - num_tokens
    return (*others, last.cut(0, num_left)) if num_left else tuple(others)


def sliced(texts: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield the parts of adjacent texts that are in a range of characters."""
    for text in texts:
        kept = text[max(0, start) : max(0, stop)]
        if kept:
            yield Markup(kept) if isinstance(text, Markup) else kept
        start, stop = start - len(text), stop - len(text)


def _joined(token_ids: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(token_ids))
