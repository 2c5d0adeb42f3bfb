"""What a store knows of an encoding beside its keys and values, and the key that names it.

The digest of an encoding covers its tokens, their positions and all that they attend to (`promptcache.layout`). A key
is a digest over that and the model, so that models never share KV. It covers the other fields of a recipe, too: a file
that holds fewer tokens than its name stands for is refused.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from promptcache.diagnostics import Short, StoreError

FORMAT_VERSION = 3


class Codec(StrEnum):
    """How KV is kept: as computed, or quantized (keys per channel, values per token)."""

    FULL = "full"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def lossy(self) -> bool:
        """Whether what comes back differs from what was computed."""
        return self is not Codec.FULL


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(Short):
    """What a store keeps about an encoding: two of them with the same key are the same.

    Attributes:
        fingerprint: Of the model, tokenizer and numerical regime.
        digest: Of the encoding, 64 hexadecimal digits.
        num_tokens: Tokens of its KV.
        first_position, last_position: The lowest and highest position of its tokens.
        codec: How the KV is kept. It enters the digest, too.
    """

    fingerprint: str
    digest: str
    num_tokens: int
    first_position: int
    last_position: int
    codec: Codec = Codec.FULL

    @cached_property
    def key(self) -> str:
        """64 hexadecimal digits."""
        positions = f"{self.num_tokens} {self.first_position} {self.last_position}"
        text = f"promptcache encoding {FORMAT_VERSION}\n{self.digest}\n{self.codec}\n{positions}\n{self.fingerprint}"
        return hashlib.sha256(text.encode()).hexdigest()


SUFFIX = ".safetensors"
"""A file with another suffix is foreign; a file with this one is an encoding, or damaged."""

_KEY = re.compile(r"[0-9a-f]{64}")


def file_name(key: str) -> str:
    """Return the name of an encoding's file.

    Raises:
        StoreError: This is no key.
    """
    if _KEY.fullmatch(key) is None:
        raise StoreError(f"{key!r} is not a key: 64 hexadecimal digits")
    return f"{key}{SUFFIX}"


def key_of(name: str) -> str | None:
    """Return the key of the encoding whose file has this name; None for any other name."""
    key = name.removesuffix(SUFFIX)
    return key if key != name and _KEY.fullmatch(key) else None
