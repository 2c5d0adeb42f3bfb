"""The oracles of the laws are independent: they import no code of the rooms that they check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ORACLES: dict[str, set[str]] = {
    "tests/laws/level_oracle.py": set(),
    "tests/laws/position_oracle.py": set(),
    "tests/laws/rules_oracle.py": {"join_path", "walk"},
    "tests/strategies/split_files.py": {"check_schema", "parse_schema"},  # to read what was written
}
"""Each oracle, and the functions of the library that it uses."""


@pytest.mark.parametrize("file", ORACLES)
def test_oracles_import_types_only(file: str) -> None:
    """An oracle imports from the rooms below only types, whose names begin with a capital, or functions named here."""
    functions = {
        alias.name
        for node in ast.walk(ast.parse((TESTS.parent / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("promptcache.")
        if not (node.module or "").startswith("promptcache.testing")
        for alias in node.names
        if not alias.name[0].isupper()
    }

    assert functions == ORACLES[file]
