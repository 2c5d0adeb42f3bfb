"""The text of an answer, piece by piece: whole characters, and never a part of a stop string."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from promptcache.answers.text import IncrementalText, whole_text
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.tokenizer import HubTokenizer, Tokenizer
from tests.tokenizer import small_tokenizers

_TEXTS = st.text(alphabet="abé🌴", max_size=12)
_TOKENIZERS: dict[str, Tokenizer] = {
    "byte fallback, BPE": HubTokenizer.from_parts(small_tokenizers.llama_like(), {}),
    "byte fallback, Unigram": HubTokenizer.from_parts(small_tokenizers.unigram(), {}),
    "byte-level": HubTokenizer.from_parts(small_tokenizers.byte_level(), {}),
    "bytes": ByteTokenizer(),
}
_LETTER, _CONTROL = -1, -2
_BYTES = (0x0A, 0x20, 0x41, 0x80, 0x98, 0x9F, 0xC3, 0xA9, 0xE2, 0xF0)
_DRAWN = st.lists(st.sampled_from((*_BYTES, _LETTER, _LETTER, _CONTROL)), max_size=24)


def _token_ids(name: str, drawn: Sequence[int]) -> list[int]:
    tokenizer = _TOKENIZERS[name]
    (letter,) = tokenizer.tokenize("ab")[-1:]
    control = min(tokenizer.control_ids)
    others = {_LETTER: letter, _CONTROL: control}
    return [others[each] if each < 0 else _byte_id(name, each) for each in drawn]


def _byte_id(name: str, byte: int) -> int:
    if name == "bytes":
        return byte
    if name.startswith("byte fallback"):
        return 3 + byte  # behind three control tokens
    alphabet = json.loads(small_tokenizers.byte_level())["model"]["vocab"]
    return int(alphabet[bytes_to_unicode()[byte]])


def _decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode("utf-8", errors="replace")


def _pieces(text: str, stop_strings: Sequence[str]) -> tuple[list[str], IncrementalText]:
    """Return the pieces of an answer of one token for each byte, the rest last."""
    answer = IncrementalText(_decode, stop_strings)
    return [*map(answer.add, text.encode()), answer.finish(text)], answer


@given(_TEXTS, st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stop_strings: list[str]) -> None:
    """The text ends where the first stop string that is complete begins, and returned pieces are never taken back."""
    pieces, answer = _pieces(text, stop_strings)
    ends = [len(text[:stop]) for stop in range(len(text) + 1) if text[:stop].endswith(tuple(stop_strings))]
    complete = text[: ends[0]] if ends and stop_strings else text
    starts = [complete.find(each) for each in stop_strings if each in complete]

    assert "".join(pieces) == complete[: min(starts, default=len(complete))]
    assert answer.stopped == bool(starts)


@pytest.mark.law
@pytest.mark.parametrize("name", _TOKENIZERS)
@given(_DRAWN)
@example([_LETTER, 0x0A, 0xF0, 0x9F])
@example([_LETTER, 0x0A, 0xF0, *[_LETTER] * 3])
@example([0xF0, _CONTROL, _CONTROL, _CONTROL, 0x9F, 0x98, 0x80])
@example([0xC3, 0x20, 0x80])
def test_pieces_of_any_tokens_are_the_text_of_the_answer(name: str, drawn: list[int]) -> None:
    """Whatever the bytes: pieces join to the text of the answer, and all text is out once a letter follows."""
    token_ids, text = _token_ids(name, drawn), _TOKENIZERS[name].decode
    answer, out = IncrementalText(text), ""
    for place, token_id in enumerate(token_ids):
        out += answer.add(token_id)
        if drawn[place] == _LETTER:
            assert out == whole_text(text, token_ids[: place + 1])
    whole = whole_text(text, token_ids)

    assert out + answer.finish(whole) == whole
    assert whole == text(token_ids) or (name.startswith("byte fallback") and "\N{REPLACEMENT CHARACTER}" in whole)


@pytest.mark.parametrize("name", _TOKENIZERS)
@pytest.mark.parametrize("byte", [0x80, 0xF0])
def test_the_work_of_a_token_does_not_grow(name: str, byte: int) -> None:
    """A few tokens are decoded for each one, also if no character is ever complete."""
    decoded: list[int] = []

    def text(token_ids: Sequence[int]) -> str:
        decoded.append(len(token_ids))
        return _TOKENIZERS[name].decode(token_ids)

    answer = IncrementalText(text)
    pieces = [answer.add(each) for each in _token_ids(name, [_LETTER, 0x0A, *[byte] * 200])]

    assert max(decoded) < 10
    assert len("".join(pieces)) > 190


def test_text_that_cannot_be_a_stop_string_is_returned_at_once() -> None:
    """Only the longest beginning of a stop string is held back."""
    answer = IncrementalText(_decode, ("stop", "pia"))

    assert [answer.add(byte) for byte in b"a sto sp"] == ["a", " ", "", "", "", "sto ", "", "s"]
    assert answer.finish("a sto sp") == "p"
