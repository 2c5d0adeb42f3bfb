"""The seam between the cached text of a prompt and the text that the prompt adds.

A tokenizer may join the last characters of a text with what follows. So the last cached tokens are left out where the
added text changes them, and the prompt adds their text in other tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from promptcache.layout.types import Layout, Prefill, Reuse, TextGroup
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
        num_kept = _num_common(known, kept)
        num_replaced = len(known) - num_kept
        num_known = _num_common(known[::-1], self.token_ids[::-1])
        if num_known < min(num_replaced + 1, len(known), max(num_replaced, len(self.token_ids))):
            return 0, apart  # the tail begins within a word, or more than the reused tokens changes
        return num_replaced, (kept[num_kept:] + first, *others)


def seam_of(reuse: Sequence[Reuse], prefill: Sequence[Prefill], layout: Layout, tokenizer: Tokenizer) -> Seam:
    """Return the end of the text of a schema in one prompt; a text behind BOS alone is at a start."""
    ends = [(each.part.last, each.part.token_ids) for each in reuse[-1:]]
    ends += [(each.stop, each.token_ids) for each in prefill[-1:]]
    only_bos = layout.has_bos and not layout.turns and len(reuse) == 1 and not prefill and reuse[0].run == 0
    if not ends or only_bos:
        return Seam(before=Before.START)
    token_ids = max(ends)[1][-4 * _TAIL :]  # a character has up to four bytes
    before = Before.CONTROL if token_ids[-1] in tokenizer.control_ids else Before.TEXT
    is_reused = bool(reuse) and (not prefill or prefill[-1].start < reuse[-1].part.last)
    return Seam(before=before, token_ids=token_ids, texts=layout.runs[reuse[-1].run].ending if is_reused else None)


def without_last(reuse: Sequence[Reuse], num_tokens: int) -> list[Reuse]:
    """Return reused tokens without the last ones of the last part."""
    if not num_tokens:
        return list(reuse)
    *others, last = reuse
    part = replace(last.part, stop=last.part.stop - num_tokens)
    return [*others, replace(last, part=part)] if part.num_tokens else others


def sliced(texts: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield the parts of adjacent texts that are in a range of characters."""
    for text in texts:
        kept = text[max(0, start) : max(0, stop)]
        if kept:
            yield Markup(kept) if isinstance(text, Markup) else kept
        start, stop = start - len(text), stop - len(text)


def _joined(token_ids: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(token_ids))


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    differ = (index for index, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differ, min(len(first), len(second)))
