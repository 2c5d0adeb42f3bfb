"""Text to token IDs and back. Only text that a chat template wrote becomes control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from promptcache.diagnostics import UnsupportedModel
from promptcache.tokenizer.rules import literal_pieces, unknown_piece, without_edges
from promptcache.tokenizer.types import Before, Markup

_SIGN = "\U0010fffd"
"""An added token of our own. A text behind it is tokenized like one behind a control token."""


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_ALPHABET = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
"""The byte for each character of the alphabet of GPT-2, in which byte-level tokenizers write their entries."""

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A vocabulary entry that is a byte, for tokenizers with byte fallback."""


class _Token(NamedTuple):
    """A token and the range of the text that it covers."""

    token_id: int
    start: int
    stop: int


class _Encoder:
    """Text to tokens, for a text at a start, behind a control token, or behind other text.

    It is made of the rules of a tokenizer, and these rules as loaded. If special tokens in a text are text to that
    backend, they are to all.

    Attributes:
        start, inner: The backends for a text at a start, and behind other text.
    """

    def __init__(self, rules: Mapping[str, Any], backend: Backend) -> None:
        inner = without_edges(rules)
        self.start = self.inner = self._signed = backend
        if inner != rules:
            only_words = backend.encode_special_tokens
            self.inner, self._signed = load(inner, only_words=only_words), load(rules, only_words=only_words)
            self._signed.add_tokens([AddedToken(_SIGN, normalized=False)])
        self._added_ids = {self.inner.token_to_id(token["content"]) for token in rules["added_tokens"]}

    def tokens(self, text: str, before: Before) -> list[_Token]:
        """Return the tokens of a text.

        Rules for the start of a text, such as a space there, apply to each text behind an added token, too.
        """
        if before is Before.START or self.start is self.inner:
            return _found(self.start, text)
        if before is Before.CONTROL and _SIGN not in text:
            return _moved(_found(self._signed, _SIGN + text)[1:], -len(_SIGN))
        if before is Before.CONTROL:
            at = text.index(_SIGN)
            return self.tokens(text[:at], before) + _moved(self.tokens(text[at:], Before.TEXT), at)
        tokens = _found(self.inner, text)
        end = next((index for index, each in enumerate(tokens, 1) if each.token_id in self._added_ids), 0)
        if not end:
            return tokens
        at = tokens[end - 1].stop
        return tokens[:end] + _moved(self.tokens(text[at:], Before.CONTROL), at)


class TextTokenizer:
    """Tokenizer of texts of a prompt and of a chat template."""

    def __init__(
        self,
        rules: Mapping[str, Any],
        special_tokens: Iterable[str],
        controls: Iterable[str],
        backend: Backend,
    ) -> None:
        """Create a tokenizer of text.

        Args:
            rules: A `tokenizer.json`, as `whole_text_rules` leaves it.
            special_tokens: Written forms of further special tokens.
            controls: Written forms of tokens that are no special tokens, and that only a chat template writes.
            backend: The rules, loaded.
        """
        self._rules = rules
        self._encoder = _Encoder(rules, backend)
        self._backend = self._encoder.inner
        declared = (token["content"] for token in rules["added_tokens"] if token["special"])
        special = self._find((*declared, *special_tokens))
        unknown = unknown_piece(rules)
        self._controls = {
            token_id: form for form, token_id in (special | self._find(controls)).items() if form != unknown
        }
        self.control_ids = frozenset(self._controls)
        self._literals = {token_id: form for form, token_id in self._find(literal_pieces(rules)).items()}
        self._suspects = self._controls.keys() | self._literals.keys()
        self._decoders = frozenset(_types(rules.get("decoder")))

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token IDs of `text` behind other text, none of them a control token.

        Raises:
            UnsupportedModel: a single character is a control token in the vocabulary.
        """
        (token_ids,) = self.tokenize_parts([text], Before.TEXT)
        return token_ids

    def tokenize_parts(self, parts: Sequence[str], before: Before) -> tuple[tuple[int, ...], ...]:
        """Return the token IDs of adjacent texts; see `Tokenizer.tokenize_parts`."""
        borders = [0, *accumulate(map(len, parts))]
        plain = [each for part, each in zip(parts, pairwise(borders), strict=True) if not isinstance(part, Markup)]
        found: list[list[int]] = [[] for _ in parts]
        at = 0
        for token in self._tokens("".join(parts), before, plain):
            while at + 1 < len(parts) and token.stop > borders[at + 1]:
                at += 1
            found[at].append(token.token_id)
        return tuple(map(tuple, found))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, control tokens in their written form."""
        parts: list[str] = []
        for is_control, group in groupby(token_ids, key=self._controls.__contains__):
            if is_control:
                parts.extend(self._controls[token_id] for token_id in group)
            else:
                parts.append(self._backend.decode(list(group), skip_special_tokens=False))
        return "".join(parts)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, like `decode` of transformers, with special tokens in their written form."""
        return str(self._encoder.start.decode(list(token_ids), skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be a part of a character."""
        piece = None if token_id in self._controls else self._backend.id_to_token(token_id)
        if piece is not None:
            if "ByteLevel" in self._decoders and all(letter in _ALPHABET for letter in piece):
                return bytes(_ALPHABET[letter] for letter in piece)
            if "ByteFallback" in self._decoders and (byte := _BYTE.fullmatch(piece)):
                return bytes.fromhex(byte[1])
        return self.detokenize((token_id,)).encode()

    @cached_property
    def _text_encoder(self) -> _Encoder:
        """The encoder to which written forms of control tokens are text."""
        forms = {*self._controls.values(), *self._literals.values()}
        added = ({**each, "special": each["content"] in forms} for each in self._rules["added_tokens"])
        rules = {**self._rules, "added_tokens": [*added]}
        return _Encoder(rules, load(rules, only_words=True))

    def _tokens(self, text: str, before: Before, plain: Sequence[tuple[int, int]]) -> list[_Token]:
        """Return the tokens of a text; no control token overlaps the ranges `plain`."""
        tokens = self._encoder.tokens(text, before)
        forged = self._forged(tokens, text, plain)
        if not forged:
            return tokens
        found, start = list[_Token](), 0
        for token in tokens:
            if token.token_id in self._controls and token not in forged:
                found += self._text_tokens(text, start, token.start, before, plain)
                found.append(token)
                start, before = token.stop, Before.CONTROL
        return found + self._text_tokens(text, start, len(text), before, plain)

    def _text_tokens(
        self, text: str, start: int, stop: int, before: Before, plain: Sequence[tuple[int, int]]
    ) -> list[_Token]:
        """Return the tokens of a part of a text without control tokens; it is split where the vocabulary has one."""
        tokens = _moved(self._text_encoder.tokens(text[start:stop], before), start)
        cuts = {start + 1 for start in self._forged(tokens, text, plain).values()}
        if not cuts:
            return tokens
        if cuts == {stop}:
            raise UnsupportedModel(f"the tokenizer makes a control token of the plain text {text[start:stop]!r}")
        return [
            token
            for first, last in pairwise(sorted(cuts | {start, stop}))
            for token in self._text_tokens(text, first, last, before if first == start else Before.TEXT, plain)
        ]

    def _forged(self, tokens: Iterable[_Token], text: str, plain: Sequence[tuple[int, int]]) -> dict[_Token, int]:
        """Return the tokens with another meaning that overlap plain text, and where each is written."""
        found: dict[_Token, int] = {}
        for token in tokens:
            if token.token_id not in self._suspects:
                continue
            _, start, stop = token
            form = self._controls.get(token.token_id)
            if form is None and self._literals[token.token_id] != text[start:stop]:
                continue
            if form and (at := text.find(form, start, stop)) >= 0:  # some control tokens take the spaces next to them
                start, stop = at, at + len(form)
            if any(start < last and first < stop for first, last in plain):
                found[token] = start
        return found

    def _find(self, forms: Iterable[str]) -> dict[str, int]:
        """Return the IDs of the written forms that are in the vocabulary."""
        found = ((form, self._backend.token_to_id(form)) for form in forms)
        return {form: token_id for form, token_id in found if token_id is not None}


def load(rules: Mapping[str, Any], *, only_words: bool = False) -> Backend:
    """Load a tokenizer from its rules.

    Args:
        only_words: Whether special tokens in a text are text.

    Raises:
        UnsupportedModel: the tokenizers library cannot read them.
    """
    try:
        backend = Backend.from_str(json.dumps(rules))
    except Exception as error:
        raise UnsupportedModel(f"the tokenizers library cannot read tokenizer.json: {error}") from error
    backend.encode_special_tokens = only_words
    return backend


def _found(backend: Backend, text: str) -> list[_Token]:
    encoding = backend.encode(text, add_special_tokens=False)
    return [_Token(token_id, *offsets) for token_id, offsets in zip(encoding.ids, encoding.offsets, strict=True)]


def _moved(tokens: Iterable[_Token], num_characters: int) -> list[_Token]:
    return [_Token(each.token_id, each.start + num_characters, each.stop + num_characters) for each in tokens]


def _types(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the types of the decoders in a rule of a tokenizer."""
    if decoder is not None:
        yield decoder["type"]
        for member in decoder.get("decoders") or ():
            yield from _types(member)
