"""Functions that write plain text and JSON. Data go to stdout, everything else to stderr.

This file does not import rich: `check` on a valid document must start fast. Styled text is in `console`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcache.diagnostics import Diagnostic, as_data, shown

if TYPE_CHECKING:
    from promptcache.decode import Completion

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


def warn(*faults: str) -> None:
    """Write a warning to stderr for each fault, in one line."""
    tell(*(f"warning: {' '.join(fault.split())}" for fault in faults))


def slot_name(module: str, parameter: str) -> str:
    """Return the name of a slot: "plan.days", or "days" outside modules."""
    return f"{module}.{parameter}" if module else parameter


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Align the cells of rows; the columns in `right` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def repaired_text(num_tokens: int) -> str:
    """Return how many of the new tokens are stored and computed again, as words behind their number."""
    return f" ({num_tokens:,} repaired)" if num_tokens else ""


def write_text(text: str) -> None:
    """Write data to stdout at once: exactly on a pipe, without control characters on a terminal."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def end_answer(answer: Completion) -> None:
    """End the text of an answer, and write its calls of tools, one line each."""
    if answer.text or not answer.tool_calls:
        write_text("\n")
    for call in answer.tool_calls:
        write_text(f"call {call.name} {call.arguments}\n")


def write_json(data: object) -> None:
    """Write one JSON value to stdout, indented."""
    write_text(json.dumps(plain(data), ensure_ascii=False, indent=2) + "\n")


def plain(value: Any) -> Any:
    """Return a result as JSON has it: a record is an object of its fields, and a diagnostic has its place."""
    if isinstance(value, Diagnostic):
        return plain(as_data(value))
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
