"""The keys of a server, of which it keeps digests only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from promptcache.diagnostics import InvalidValue

_KEY = re.compile(r"[!-~]+")
_KEY_WORDS = "letters without accents, digits and signs are expected, without spaces; headers of HTTP carry no others"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeys:
    """Digests of the keys of a server. The keys themselves are not kept.

    Attributes:
        clients: Keys of clients; without any, no key is needed.
        admins: Keys that may also change schemas and read metrics. Without any, schemas cannot be changed.
        metrics: Keys that may read the metrics of all callers, and nothing else.
    """

    clients: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()


def digests(keys: Iterable[str]) -> frozenset[str]:
    """Return the digests of keys. Comparing digests takes a time that tells nothing about the keys."""
    return frozenset(hashlib.sha256(key.encode()).hexdigest() for key in keys)


def read_keys(path: Path) -> frozenset[str]:
    """Return the digests of the keys in a file: one key a line; empty lines and lines with # are skipped.

    Raises:
        InvalidValue: The file has no key, a key that is not printable ASCII without spaces, or is not UTF-8.
        OSError: The file cannot be read.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        message = f"{path}: byte 0x{data[fault.start]:02x} in line {line} is not UTF-8; save the file as UTF-8"
        raise InvalidValue(message) from None
    lines = enumerate((line.strip() for line in text.splitlines()), 1)
    keys = {number: line for number, line in lines if line and not line.startswith("#")}
    if not keys:
        raise InvalidValue(f"{path}: at least one key is expected, each on a line of its own")
    for number, key in keys.items():
        if _KEY.fullmatch(key) is None:
            raise InvalidValue(f"{path}: the key in line {number} is not allowed: {_KEY_WORDS}")
    return digests(keys.values())
