"""The bytes of a vocabulary entry, which may be a part of a character.

Two kinds of tokenizers have such entries: those with a byte-level alphabet, and those with byte fallback (`<0xC3>`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
ALPHABET = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
"""The byte for each character of the alphabet of GPT-2, in which byte-level tokenizers write their entries."""


def decoders_of(rules: Mapping[str, Any]) -> frozenset[str]:
    """Return the types of the decoders in the rules of a tokenizer."""
    return frozenset(_types(rules.get("decoder")))


def piece_bytes(piece: str, decoders: frozenset[str]) -> bytes | None:
    """Return the bytes of a vocabulary entry that is written as bytes; None if it is written as text."""
    if "ByteLevel" in decoders and all(letter in ALPHABET for letter in piece):
        return bytes(ALPHABET[letter] for letter in piece)
    if "ByteFallback" in decoders and len(piece) == len("<0xC3>") and piece[:3] == "<0x" and piece[-1] == ">":
        try:
            return bytes((int(piece[3:5], 16),))
        except ValueError:
            return None
    return None


def _types(decoder: Mapping[str, Any] | None) -> Iterator[str]:
    if decoder is not None:
        yield decoder["type"]
        for member in decoder.get("decoders") or ():
            yield from _types(member)
