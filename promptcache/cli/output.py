"""Functions that write plain text and JSON. Data go to stdout, everything else to stderr.

This file does not import rich: `check` on a valid document must start fast. Styled text is in `console`.
"""

from __future__ import annotations

import json
import sys

from promptcache.diagnostics import shown

_CONTROL = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_MAX_FACT = 200  # characters
_REPLACED = {code: "\N{REPLACEMENT CHARACTER}" for code in _CONTROL if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """Replace control characters and changes of direction: a document or answer must not control the terminal."""
    return text.translate(_REPLACED)


def fact_text(text: str) -> str:
    """Return a fact of a stored file in one line: as it is, or escaped and shortened if that is not possible."""
    return text if len(text) <= _MAX_FACT and text.isprintable() else shown(text)


def tell(*lines: str) -> None:
    """Write lines to stderr."""
    sys.stderr.write("".join(f"{harmless(line)}\n" for line in lines))
    sys.stderr.flush()


def repaired_text(num_tokens: int) -> str:
    """Return the words behind a number of new tokens: how many of them are stored, and computed again."""
    return f" ({num_tokens:,} repaired)" if num_tokens else ""


def write_text(text: str) -> None:
    """Write data to stdout at once: exactly on a pipe, without control characters on a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(data: object) -> None:
    """Write one JSON value to stdout, indented."""
    write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n")
