"""The layout room stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("heavy", ["torch", "transformers", "numpy"])
def test_layout_loads_no_heavy_library(heavy: str):
    """Importing promptcache.layout loads neither torch nor transformers nor numpy."""
    code = f"import sys, promptcache.layout; sys.exit({heavy!r} in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
