"""Text to token IDs and back. Only text that a chat template wrote becomes control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Backend

from promptcache.diagnostics import UnsupportedModel
from promptcache.tokenizer.rules import literal_pieces, unknown_piece, whole_text_rules, without_edges
from promptcache.tokenizer.token_bytes import decoders_of, piece_bytes
from promptcache.tokenizer.types import Before, Markup


class _Token(NamedTuple):
    """A token and the range of the text that it covers."""

    token_id: int
    start: int
    stop: int


class TextTokenizer:
    """Tokenizer of texts of a prompt and of a chat template. It splits a text where it would become a control token."""

    def __init__(self, rules: Mapping[str, Any], special_tokens: Iterable[str], controls: Iterable[str]) -> None:
        """Create a tokenizer of text.

        Args:
            rules: A `tokenizer.json`.
            special_tokens: Written forms of further special tokens.
            controls: Written forms of tokens that are no special tokens, and that only a chat template writes.
        """
        self._whole = whole_text_rules(rules)
        self._rules = without_edges(self._whole)
        self._backend = load(self._rules)
        special = {token["content"]: int(token["id"]) for token in rules["added_tokens"] if token["special"]}
        special |= self._find(special_tokens)
        self._special_ids = frozenset(special.values())
        unknown = unknown_piece(rules)
        self._controls = {
            token_id: form for form, token_id in (special | self._find(controls)).items() if form != unknown
        }
        self._control_ids = frozenset(self._controls)
        self._literals = {token_id: form for form, token_id in self._find(literal_pieces(rules)).items()}
        self._suspects = self._controls.keys() | self._literals.keys()
        self._decoders = decoders_of(self._rules)

    @property
    def control_ids(self) -> frozenset[int]:
        """Special tokens without the unknown token, and tokens that only the chat template writes."""
        return self._control_ids

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token IDs of `text` behind other text, none of them a control token.

        Raises:
            UnsupportedModel: a single character is a control token in the vocabulary.
        """
        return tuple(token.token_id for token in self._tokens(text, Before.TEXT, [(0, len(text))]))

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
        """Return the text of an answer, as `decode(skip_special_tokens=True)` of transformers."""
        kept = [token_id for token_id in token_ids if token_id not in self._special_ids]
        return self._start_backend.decode(kept, skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be a part of a character."""
        piece = None if token_id in self._controls else self._backend.id_to_token(token_id)
        found = None if piece is None else piece_bytes(piece, self._decoders)
        return self.detokenize((token_id,)).encode() if found is None else found

    @cached_property
    def _start_backend(self) -> Backend:
        """The backend for texts at a start, where some tokenizers add a space."""
        return self._backend if self._rules == self._whole else load(self._whole)

    @cached_property
    def _opening(self) -> str:
        """The written form of some control token, to tokenize text behind it."""
        return next(iter(self._controls.values()), "")

    def _tokens(self, text: str, before: Before, plain: Sequence[tuple[int, int]]) -> list[_Token]:
        """Return the tokens of a text; no control token overlaps the ranges `plain`."""
        opening = self._opening if before is Before.CONTROL else ""
        backend = self._backend if before is Before.TEXT else self._start_backend
        encoding = backend.encode(opening + text, add_special_tokens=False)
        skipped = len(opening)
        tokens = [
            _Token(token_id, max(0, start - skipped), max(0, stop - skipped))
            for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        ][1 if opening else 0 :]
        if self._suspects.isdisjoint(encoding.ids[1 if opening else 0 :]):
            return tokens
        cuts = {start + 1 for start in self._forged(text, tokens, plain)}
        if not cuts:
            return tokens
        if cuts == {len(text)}:
            raise UnsupportedModel(f"the tokenizer makes a control token of the plain text {text!r}")
        found: list[_Token] = []
        for start, stop in pairwise(sorted(cuts | {0, len(text)})):
            inner = ((max(first, start) - start, min(last, stop) - start) for first, last in plain)
            inside = [(first, last) for first, last in inner if first < last]
            some = self._tokens(text[start:stop], Before.TEXT if start else before, inside)
            found += (_Token(each.token_id, each.start + start, each.stop + start) for each in some)
        return found

    def _forged(self, text: str, tokens: Sequence[_Token], plain: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Yield where plain text starts to be a token with another meaning."""
        for token_id, start, stop in tokens:
            form = self._controls.get(token_id)
            if form is None and self._literals.get(token_id) != text[start:stop]:
                continue
            place = text.find(form or text[start:stop], start, stop)  # some tokens take the spaces next to them
            first, last = (start, stop) if place < 0 else (place, place + len(form or text[start:stop]))
            if any(first < end and begin < last for begin, end in plain):
                yield first

    def _find(self, forms: Iterable[str]) -> dict[str, int]:
        """Return the IDs of the written forms that are in the vocabulary."""
        found = ((form, self._backend.token_to_id(form)) for form in forms)
        return {form: token_id for form, token_id in found if token_id is not None}


def load(rules: Mapping[str, Any]) -> Backend:
    """Load a tokenizer from its rules.

    Raises:
        UnsupportedModel: the tokenizers library cannot read them.
    """
    try:
        return Backend.from_str(json.dumps(rules))
    except Exception as error:
        raise UnsupportedModel(f"the tokenizers library cannot read tokenizer.json: {error}") from error
