"""The key of an encoding, and the facts that the key covers.

The digest of an encoding covers its tokens, their positions and all that they attend to (`promptcache.layout`). A key
covers that digest, the model and the other fields of a `Recipe`. So models never share KV, and a reader notices a file
that has fewer tokens than its name promises.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

from promptcache.codecs import Codec
from promptcache.diagnostics import Kind, Short, StoreError

FORMAT_VERSION = 5

SUFFIX = ".safetensors"
"""Suffix of the files of encodings. Files with another suffix are foreign."""

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(Short):
    """Identity of an encoding under one model. Recipes with the same key are equal.

    Attributes:
        fingerprint: Fingerprint of the model, the tokenizer and the numerical regime.
        digest: Digest of the encoding, 64 hexadecimal digits.
        num_tokens: Number of tokens.
        first_position, last_position: Lowest and highest position of the tokens.
        codec: How the KV is stored. The digest covers it as well.
    """

    fingerprint: str
    digest: str
    num_tokens: int
    first_position: int
    last_position: int
    codec: Codec = Codec.FULL

    @cached_property
    def key(self) -> str:
        """Key of the encoding in every store, 64 hexadecimal digits."""
        positions = f"{self.num_tokens} {self.first_position} {self.last_position}"
        text = f"promptcache encoding {FORMAT_VERSION}\n{self.digest}\n{self.codec}\n{positions}\n{self.fingerprint}"
        return hashlib.sha256(text.encode()).hexdigest()


KEY = Kind("a key, 64 hexadecimal digits,", lambda value: isinstance(value, str) and bool(_KEY.fullmatch(value)))


def file_name(key: str) -> str:
    """Return the name of the file of an encoding.

    Raises:
        StoreError: `key` is not a key.
    """
    KEY.check("key", key, StoreError)
    return f"{key}{SUFFIX}"


def key_of(name: str) -> str | None:
    """Return the key of the encoding with this file name, or None for a foreign file."""
    key = name.removesuffix(SUFFIX)
    return key if key != name and KEY.takes(key) else None
