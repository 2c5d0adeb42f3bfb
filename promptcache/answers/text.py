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
        stopped: Whether a stop string was found. Nothing is returned after it.
        num_known: Characters of the answer that are known, returned or not.
    """

    def __init__(self, text: Callable[[Sequence[int]], str], stop_strings: Sequence[str] = ()) -> None:
        """Create a detokenizer of one answer.

        Args:
            text: Turns token IDs into text without control tokens.
            stop_strings: Texts that end the answer and are not part of it. None of them is empty.
        """
        self.stopped = False
        self.num_known = 0
        self._text = text
        self._stop_strings = tuple(stop_strings)
        self._pending: list[int] = []  # tokens whose text is not known yet
        self._before: list[int] = []  # earlier tokens: some tokenizers put spaces between tokens only
        self._held = ""  # known text that may be the beginning of a stop string

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
        return self._known(text[self.num_known :], last=True)

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
        self.num_known += len(piece)
        held = self._held + piece
        found = [place for each in self._stop_strings if (place := held.find(each)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return held[: min(found)]
        stop = len(held) if last else len(held) - num_open(held, self._stop_strings)
        self._held = held[stop:]
        return held[:stop]


def num_open(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest end of a text that is the beginning of a mark, and not all of it."""
    most = min(len(text), max(map(len, marks), default=1) - 1)
    ends = (count for count in range(most, 0, -1) if any(each.startswith(text[-count:]) for each in marks))
    return next(ends, 0)
