"""Text to token IDs and back. No text becomes a control token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from tokenizers import Tokenizer as Backend

from promptcache.diagnostics import UnsupportedModel
from promptcache.tokenizer.rules import is_text, literal_pieces, unknown_piece
from promptcache.tokenizer.token_bytes import decoders_of, piece_bytes


class TextTokenizer:
    """Tokenizer of text without added tokens. It splits a text where the vocabulary itself contains a control token."""

    def __init__(self, rules: Mapping[str, Any], backend: Backend, special_tokens: Iterable[str]) -> None:
        """Create a tokenizer of text.

        Args:
            rules: What `backend` was loaded from, control tokens marked.
            backend: Handed over: from now on it takes control tokens in a text for text.
            special_tokens: Written forms of further control tokens.
        """
        added = [token for token in rules["added_tokens"] if not is_text(token)]
        controls = {token["content"]: int(token["id"]) for token in added} | _find(backend, special_tokens)
        unknown = unknown_piece(rules)
        self._controls = {token_id: form for form, token_id in controls.items() if form != unknown}
        self._control_ids = frozenset(self._controls)
        self._literals = {token_id: form for form, token_id in _find(backend, literal_pieces(rules)).items()}
        self._decoders = decoders_of(rules)
        self._suspects = self._controls.keys() | self._literals.keys()
        self._backend = backend
        self._backend.encode_special_tokens = True

    @property
    def control_ids(self) -> frozenset[int]:
        """All special and added tokens, except the unknown token and tokens for runs of whitespace."""
        return self._control_ids

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token IDs of `text`, none of them a control token.

        Raises:
            UnsupportedModel: a single character is a control token in the vocabulary.
        """
        encoding = self._backend.encode(text, add_special_tokens=False)
        token_ids = encoding.ids
        if self._suspects.isdisjoint(token_ids):
            return tuple(token_ids)
        cuts = {start + 1 for start, _ in self._forged(text, token_ids, encoding.offsets)}
        if not cuts:
            return tuple(token_ids)
        if cuts == {len(text)}:
            raise UnsupportedModel(f"the tokenizer makes a control token of the plain text {text!r}")
        bounds = sorted(cuts | {0, len(text)})
        return tuple(token_id for start, stop in pairwise(bounds) for token_id in self.tokenize(text[start:stop]))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, control tokens in their written form."""
        parts: list[str] = []
        for is_control, group in groupby(token_ids, key=self._controls.__contains__):
            if is_control:
                parts.extend(self._controls[token_id] for token_id in group)
            else:
                parts.append(self._backend.decode(list(group), skip_special_tokens=False))
        return "".join(parts)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be a part of a character."""
        piece = None if token_id in self._controls else self._backend.id_to_token(token_id)
        found = None if piece is None else piece_bytes(piece, self._decoders)
        return self.detokenize((token_id,)).encode() if found is None else found

    def _forged(
        self, text: str, token_ids: Sequence[int], offsets: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `text` that the vocabulary would map to tokens with another meaning."""
        for token_id, (start, stop) in zip(token_ids, offsets, strict=True):
            if token_id in self._controls or self._literals.get(token_id) == text[start:stop]:
                yield start, stop


def load(rules: Mapping[str, Any]) -> Backend:
    """Load a tokenizer from its rules.

    Raises:
        UnsupportedModel: the tokenizers library cannot read them.
    """
    try:
        return Backend.from_str(json.dumps(rules))
    except Exception as error:
        raise UnsupportedModel(f"the tokenizers library cannot read tokenizer.json: {error}") from error


def _find(backend: Backend, forms: Iterable[str]) -> dict[str, int]:
    """Return the IDs of the written forms that are in the vocabulary."""
    found = ((form, backend.token_to_id(form)) for form in forms)
    return {form: token_id for form, token_id in found if token_id is not None}
