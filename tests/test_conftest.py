"""Under CI a test gets the same examples, whichever tests ran before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import promptcache

ROOT = Path(__file__).parents[1]
PACKAGE = Path(promptcache.__file__).parent


@pytest.mark.process
def test_no_module_is_left_to_load_under_ci() -> None:
    """What Hypothesis takes constants from is there before the first test, so no test can add to it."""
    code = "import sys, tests.conftest; print(*(getattr(module, '__file__', '') for module in sys.modules.values()), sep='\\n')"
    command = [sys.executable, "-c", code]

    printed = subprocess.run(
        command, env={**os.environ, "CI": "1"}, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout

    modules = {str(path) for path in PACKAGE.rglob("*.py") if "schemas" not in path.parts} - {
        str(PACKAGE / "__main__.py")
    }
    assert modules <= set(printed.splitlines())
