"""Names of encodings: the form of a key, and the file name that it gives."""

from __future__ import annotations

import re

from promptcache.diagnostics import StoreError

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
