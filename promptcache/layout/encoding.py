"""Encodings and KV parts: names of KV that is computed once, without tensors.

An encoding has tokens, their positions and their context. Its digest is its identity: equal digests mean equal KV, in
any schema or request. A digest does not depend on a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from struct import pack
from typing import Any

DIGEST_VERSION = 3
"""Version that enters every digest. A change of the digested data, or of its meaning, needs a new version."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Encoding:
    """Tokens at positions, and the KV parts that they attend to. Equality and hash are those of `digest`.

    A token attends to itself, to lower positions of its own encoding, and to lower positions of `context`.

    Attributes:
        token_ids: In position order, slot fillers included; at least one.
        position_ids: As long as `token_ids`, strictly increasing.
        context: In position order.
        codec: Storage format of the KV: "full", or a lossy codec. KV that attends to lossy KV is different, too.
        digest: 64 hexadecimal digits.
        whole: The part with all tokens.
    """

    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    context: tuple[KVPart, ...] = ()
    codec: str = "full"
    digest: str = field(init=False)
    whole: KVPart = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.position_ids) > 0, "one position for each token"
        object.__setattr__(self, "digest", self.digest_until(len(self.token_ids)))
        object.__setattr__(self, "whole", KVPart(self, 0, len(self.token_ids)))

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self.token_ids)

    def digest_until(self, stop: int) -> str:
        """Return the digest of the encoding that ends before token `stop`, under the same context.

        Attention is causal: the KV of the first tokens does not depend on the later ones.
        """
        digest = hashlib.sha256(f"promptcache encoding {DIGEST_VERSION}\n{self.codec}\n{stop}\n".encode())
        digest.update(pack(f"<{stop}q", *self.token_ids[:stop]))
        digest.update(pack(f"<{stop}q", *self.position_ids[:stop]))
        digest.update(context_digest(self.context).encode())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Encoding) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        first, last = self.position_ids[0], self.position_ids[-1]
        return (
            f"Encoding({self.digest[:12]}, {self.num_tokens} tokens at {first}-{last}, {len(self.context)} in context)"
        )


@dataclass(frozen=True, slots=True)
class KVPart:
    """Tokens `[start, stop)` of an encoding (indices, not positions), at their own positions plus `shift`."""

    encoding: Encoding
    start: int
    stop: int
    shift: int = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the part."""
        return self.stop - self.start

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token IDs of the part, in position order."""
        return self.encoding.token_ids[self.start : self.stop]

    @property
    def position_ids(self) -> tuple[int, ...]:
        """Position of each token."""
        own = self.encoding.position_ids[self.start : self.stop]
        return tuple(position + self.shift for position in own) if self.shift else own

    @property
    def first(self) -> int:
        """Lowest position."""
        return self.encoding.position_ids[self.start] + self.shift

    @property
    def last(self) -> int:
        """Highest position."""
        return self.encoding.position_ids[self.stop - 1] + self.shift

    def at(self, position: int) -> KVPart:
        """Return the same tokens with the first one at `position`."""
        shift = position - self.encoding.position_ids[self.start]
        return self if shift == self.shift else replace(self, shift=shift)

    @property
    def digest(self) -> str:
        """Digest of the part's KV; it does not depend on the tokens of the encoding after the part."""
        encoding = self.encoding
        whole = encoding.digest if self.stop == len(encoding.token_ids) else encoding.digest_until(self.stop)
        return f"{whole} {self.start} {self.shift}" if self.start or self.shift else whole


def context_digest(context: Iterable[KVPart]) -> str:
    """Return the digest of the parts of a context, 64 hexadecimal digits."""
    return hashlib.sha256("\n".join([part.digest for part in context]).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTokens:
    """All tokens of a request: parts of stored KV, and new tokens, each in position order.

    Attributes:
        parts: No two parts have a position in common.
        token_ids: New tokens; never empty. Generation continues after the last one.
        position_ids: As long as `token_ids`, strictly increasing.
    """

    parts: tuple[KVPart, ...]
    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]

    @property
    def used_ids(self) -> tuple[int, ...]:
        """IDs of all tokens in use, stored and new, in position order: the prompt of a model without a cache."""
        used = [*zip(self.position_ids, self.token_ids, strict=True)]
        for part in self.parts:
            used += zip(part.position_ids, part.token_ids, strict=True)
        return tuple(token_id for _, token_id in sorted(used))


def num_shared(known: Sequence[Any], wanted: Sequence[Any]) -> int:
    """Return the length of the longest common prefix of two sequences of tokens, or of two texts."""
    if [*known] == [*wanted]:
        return len(known)
    pairs = enumerate(zip(known, wanted, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(known), len(wanted)))
