"""The text of an answer, piece by piece, from its tokens.

A piece never ends inside a character, and no part of a stop string is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "�"

_MAX_OPEN = 3
"""Tokens whose bytes may be the beginning of one character. A character has four bytes at most."""


def whole_text(text: Callable[[Sequence[int]], str], token_ids: Sequence[int]) -> str:
    """Return the text of a whole answer, which is that of its pieces.

    It differs from `text(token_ids)` only if there are invalid bytes: tokenizers with byte fallback replace valid bytes
    before an invalid one, too.
    """
    whole = text(token_ids)
    if _REPLACEMENT not in whole:
        return whole
    answer = IncrementalText(text)
    return "".join([*map(answer.add, token_ids), answer.rest()])


class IncrementalText:
    """Incremental detokenizer.

    Attributes:
        stop_string: The stop string that was found, or None. Nothing is returned after it.
    """

    def __init__(self, text: Callable[[Sequence[int]], str], stop_strings: Sequence[str] = ()) -> None:
        """Create a detokenizer of one answer.

        Args:
            text: Turns token IDs into text without control tokens.
            stop_strings: Texts that end the answer and are not part of it. None of them is empty.
        """
        self.stop_string: str | None = None
        self._text = text
        self._stop_strings = tuple(stop_strings)
        self._pending: list[int] = []  # tokens whose text is not known yet
        self._before: list[int] = []  # earlier tokens: some tokenizers put spaces between tokens only
        self._num_known = 0  # characters of the answer that are known
        self._held = ""  # known text that may be the beginning of a stop string

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self.stop_string is not None

    @property
    def num_known(self) -> int:
        """Characters of the answer that are known, returned or not."""
        return self._num_known

    def add(self, token_id: int) -> str:
        """Add a token and return the text that is certain now."""
        self._pending.append(token_id)
        count = len(self._pending)
        whole = self._text([*self._before, *self._pending])
        if whole.endswith(_REPLACEMENT):  # perhaps a part of a character
            if not self._text([token_id, token_id]):  # of one space alone, decoders remove the space
                self._pending.pop()  # a control token, which is no part of it
                return ""
            if count <= _MAX_OPEN:
                return ""
            count -= _MAX_OPEN
            whole = self._text([*self._before, *self._pending[:count]])
        tokens = self._pending[:count]
        piece = self._added_text(tokens, whole)
        if piece is None:
            return ""
        self._before = tokens if piece else [*self._before, *tokens]
        del self._pending[:count]
        return self._known(piece, last=False)

    def rest(self) -> str:
        """Return the text of the tokens that are held back, if no more follow."""
        piece = self._added_text(self._pending, self._text([*self._before, *self._pending]))
        return self._text(self._pending) if piece is None else piece

    def finish(self, text: str) -> str:
        """Return the rest of the answer, whose text is `text`, as `whole_text` returns it."""
        return self._known(text[self._num_known :], last=True)

    def _added_text(self, token_ids: Sequence[int], whole: str) -> str | None:
        """Return the text that tokens add behind those before; None if they change the text of those.

        Args:
            whole: The text of both.
        """
        before = self._text(self._before)
        if whole.startswith(before):
            return whole[len(before) :]
        alone = self._text(token_ids)
        return alone if _REPLACEMENT in alone else None  # byte fallback: bytes before an invalid one are replaced, too

    def _known(self, piece: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        self._num_known += len(piece)
        held = self._held + piece
        found = [(place, each) for each in self._stop_strings if (place := held.find(each)) >= 0]
        if found:
            stop, self.stop_string = min(found)
            self._held = ""
            return held[:stop]
        stop = len(held) if last else len(held) - self._num_open(held)
        self._held = held[stop:]
        return held[:stop]

    def _num_open(self, text: str) -> int:
        """Return the length of the longest end of `text` that is the beginning of a stop string."""
        most = min(len(text), max(map(len, self._stop_strings), default=1) - 1)
        ends = (count for count in range(most, 0, -1) if _begins(text[-count:], self._stop_strings))
        return next(ends, 0)


def _begins(end: str, stop_strings: Sequence[str]) -> bool:
    return any(each.startswith(end) for each in stop_strings)
