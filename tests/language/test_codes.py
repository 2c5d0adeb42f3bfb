"""Tests of the table of codes, its documentation, and the import cost of the language."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import promptcache
import promptcache.language
from promptcache.diagnostics import CODES, suggest

ROOT = Path(promptcache.__file__).parent
ERRORS = Path(__file__).parents[2] / "docs" / "errors.md"


def test_every_code_in_use_is_in_the_table():
    """Every code in the source files is in the table."""
    used = {
        code for file in ROOT.rglob("*.py") for code in re.findall(r"\bPC\d{3}\b", file.read_text(encoding="utf-8"))
    }
    blocks = {code for code in used if code.endswith("00")}  # first codes of the blocks, used in comparisons
    assert used - blocks <= CODES.keys()


def test_importing_the_language_loads_no_model_library():
    """Importing the language imports neither torch nor transformers."""
    code = "import sys, promptcache.language; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_all_names_are_there():
    """Every name in __all__ exists."""
    assert all(hasattr(promptcache.language, name) for name in promptcache.language.__all__)


def test_suggestions_survive_typical_slips():
    """Suggestions survive a missing, doubled, swapped or wrong letter, or another case; an unrelated word gets none."""
    known = ["miami", "policy", "required"]
    slips = ["maimi", "polcy", "requred", "POLICY", "miammi", "xyz"]
    assert [suggest(slip, known) for slip in slips] == ["miami", "policy", "required", "policy", "miami", None]
