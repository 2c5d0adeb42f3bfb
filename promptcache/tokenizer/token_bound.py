"""A lower bound of the number of tokens of a text, without tokenizing it.

A text of a million characters takes hundreds of megabytes while it is tokenized. Where a token has a longest text, the
number of characters tells that a text cannot fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from promptcache.tokenizer.token_bytes import ALPHABET
from promptcache.tokenizer.types import Tokenizer

_SMALL = 2**16
"""Characters of a text that takes little memory while it is tokenized."""

_COMPOSED = 4
"""The largest number of characters that Unicode's normalization makes one of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBound:
    """What is known of the longest text of a token.

    Attributes:
        max_characters: Characters of the text of a token at most; None if this is not known.
        composes: Whether several characters may become one before the text is tokenized.
        drops_spaces: Whether whitespace may become no token.
    """

    max_characters: int | None
    composes: bool = False
    drops_spaces: bool = False

    def min_num_tokens(self, text: str) -> int:
        """Return a number of tokens that a text has at least."""
        if self.max_characters is None:
            return 0
        num = sum(map(len, text.split())) if self.drops_spaces else len(text)
        most = self.max_characters * (_COMPOSED if self.composes and not text.isascii() else 1)
        return -(-num // most)


def min_num_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Return a number of tokens that a large text has at least.

    It is 0 if the tokenizer does not know one, and for a small text, whose tokens can be counted.
    """
    if len(text) <= _SMALL:
        return 0
    bound = getattr(tokenizer, "token_bound", None)
    return bound.min_num_tokens(text) if isinstance(bound, TokenBound) else 0


def read_bound(rules: Mapping[str, Any]) -> TokenBound:
    """Return what the rules of a tokenizer say. Rules that may drop or join characters give no bound."""
    model, added = rules["model"], rules["added_tokens"]
    normalizers = tuple(_flat(rules.get("normalizer"), "normalizers"))
    pre_tokenizers = tuple(_flat(rules.get("pre_tokenizer"), "pretokenizers"))
    if not all(map(_keeps, normalizers)) or not all(map(_splits, pre_tokenizers)):
        return TokenBound(max_characters=None)
    is_bytes = any(rule["type"] == "ByteLevel" for rule in (*normalizers, *pre_tokenizers))
    vocabulary = _vocabulary(model)
    if vocabulary is None or not _covers_all(model, vocabulary, is_bytes=is_bytes):
        return TokenBound(max_characters=None)
    pieces = (*vocabulary, *(str(token["content"]) for token in added))
    return TokenBound(
        max_characters=max(1, *map(len, pieces)),
        composes=any(rule["type"] in ("NFC", "NFKC") for rule in normalizers),
        drops_spaces=any(token["lstrip"] or token["rstrip"] for token in added)
        or any(rule["type"] == "Strip" for rule in normalizers),
    )


def _flat(rule: Mapping[str, Any] | None, members: str) -> Iterator[Mapping[str, Any]]:
    if rule is None:
        return
    if rule["type"] != "Sequence":
        yield rule
        return
    for member in rule[members]:
        yield from _flat(member, members)


def _keeps(normalizer: Mapping[str, Any]) -> bool:
    """Return whether a normalizer keeps the number of characters, or adds some, or composes them."""
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        return pattern is not None and 0 < len(pattern) <= len(normalizer["content"])
    return normalizer["type"] in {"NFC", "NFKC", "NFD", "NFKD", "Lowercase", "Prepend", "Strip", "ByteLevel"}


def _splits(rule: Mapping[str, Any]) -> bool:
    """Return whether a pre-tokenizer keeps all characters."""
    if rule["type"] in {"Split", "Punctuation"}:
        return rule.get("behavior") in {"Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}
    return rule["type"] in {"ByteLevel", "Metaspace", "Digits"}


def _vocabulary(model: Mapping[str, Any]) -> frozenset[str] | None:
    match model["type"]:
        case "BPE":
            return frozenset(model["vocab"])
        case "Unigram":
            return frozenset(piece for piece, _ in model["vocab"])
        case _:
            return None


def _covers_all(model: Mapping[str, Any], vocabulary: frozenset[str], *, is_bytes: bool) -> bool:
    """Return whether each unknown character becomes a token, at least."""
    if is_bytes and model["type"] == "BPE":
        return vocabulary >= ALPHABET.keys()
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return True
    return model["type"] == "BPE" and model.get("unk_token") in vocabulary and not model.get("fuse_unk")
