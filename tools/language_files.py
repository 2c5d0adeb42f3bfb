"""Write what is made from the declarations of the language: `python -m tools.language_files`.

These are the grammar for XML editors, and the tables of attributes in docs/language.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptcache.language import document_grammar, vocabulary

_ROOT = Path(__file__).parents[1]
GRAMMAR, PAGE = _ROOT / "grammar" / "promptcache.rng", _ROOT / "docs" / "language.md"
_TABLE = re.compile(r"(^### `(\w+)`\n(?:(?!#).*\n)*?\| attribute \| \|\n\|---\|---\|\n)(?:\|.*\n)+", re.MULTILINE)


def with_tables(page: str) -> str:
    """Return docs/language.md with the attributes of each element in the table of its section, if it has one."""
    elements = vocabulary()
    return _TABLE.sub(lambda found: found[1] + "".join(map(_row, elements[found[2]]["attributes"])), page)


def _row(attribute: Mapping[str, Any]) -> str:
    mark, end = " (required)" * attribute["required"], ". Inherited" * attribute["inherited"]
    words = f"{_values(attribute)}{attribute['words']}{end}".replace("|", "\\|")
    return f"| `{attribute['name']}`{mark} | {words} |\n"


def _values(attribute: Mapping[str, Any]) -> str:
    """Return the values of a choice, with the default."""
    values = [f"`{each}`{' (default)' if each == attribute['default'] else ''}" for each in attribute["values"]]
    is_choice = values and "true" not in attribute["values"]
    return f"{', '.join(values[:-1])} or {values[-1]}: " if is_choice else ""


def main() -> None:
    """Write the files."""
    GRAMMAR.write_text(document_grammar(), encoding="utf-8")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
