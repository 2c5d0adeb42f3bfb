"""The text of an answer, piece by piece: whole characters, and never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from promptcache.runtime.text import IncrementalText

_TEXTS = st.text(alphabet="abé🌴", max_size=12)


def _decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode("utf-8", errors="replace")


def _pieces(text: str, stop_strings: Sequence[str]) -> tuple[list[str], IncrementalText]:
    """Return the pieces of an answer of one token for each byte, the rest last."""
    answer = IncrementalText(_decode, stop_strings)
    return [*map(answer.add, text.encode()), answer.finish(text)], answer


@given(_TEXTS)
def test_pieces_are_the_text(text: str) -> None:
    """Without stop strings the pieces are the whole text, in whole characters."""
    pieces, answer = _pieces(text, ())

    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert not answer.stopped


@given(_TEXTS, st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stop_strings: list[str]) -> None:
    """The text ends where the first stop string that is complete begins, and returned pieces are never taken back."""
    pieces, answer = _pieces(text, stop_strings)
    ends = [len(text[:stop]) for stop in range(len(text) + 1) if text[:stop].endswith(tuple(stop_strings))]
    complete = text[: ends[0]] if ends and stop_strings else text
    starts = [complete.find(each) for each in stop_strings if each in complete]

    assert "".join(pieces) == complete[: min(starts, default=len(complete))]
    assert answer.stopped == bool(starts)


def test_text_that_cannot_be_a_stop_string_is_returned_at_once() -> None:
    """Only the longest beginning of a stop string is held back."""
    answer = IncrementalText(_decode, ("stop", "pia"))

    assert [answer.add(byte) for byte in b"a sto sp"] == ["a", " ", "", "", "", "sto ", "", "s"]
    assert answer.finish("a sto sp") == "p"
