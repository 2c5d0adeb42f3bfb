"""What only a process of its own can show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("folder")


COMMANDS = [
    "check travel.xml",
    "layout travel.xml",
    "render prompts/miami.xml",
    "explain travel.xml",
    "diff travel.xml travel.xml",
    "why PC401",
]


def test_commands_without_a_model_load_neither_torch_nor_transformers() -> None:
    """Whatever needs no model does not wait for torch."""
    code = f"""
import sys
from promptcache.cli.app import app
for command in {COMMANDS}:
    try:
        app(command.split())
    except SystemExit as end:
        assert end.code == 0, command
print([name for name in ("torch", "transformers") if name in sys.modules])
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert output.endswith("\n[]\n")


def test_check_loads_only_what_it_needs() -> None:
    """Whoever checks a sound document waits for the parsers and the solver, not for styles, templates or a model."""
    code = """
import sys
sys.modules["rnc2rng"] = None  # lxml loads it where it is installed, which our dependencies never do
from promptcache.cli.app import app
try:
    app(["check", "travel.xml", "prompts/miami.xml"])
except SystemExit as end:
    assert end.code == 0
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module and not name.startswith("_")}
print(*sorted(loaded - sys.stdlib_module_names))
print(*sorted(name for name in sys.modules if name.startswith("promptcache.") and name.count(".") == 1))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, others, rooms = done.stdout.splitlines()

    pysat = {"pysat", "pysolvers", "pycard", "pyformula", "six"}
    assert set(others.split()) <= {"promptcache", "click", "lxml", "cython_runtime", *pysat}
    assert set(rooms.split()) <= {f"promptcache.{room}" for room in ("cli", "diagnostics", "demo", "language")}


def test_module_is_the_command_and_colours_need_a_terminal() -> None:
    """`python -m promptcache` is the command; what is piped has no colours and the exit code of the findings."""
    words = [sys.executable, "-m", "promptcache", "check", "prompts/typo.xml"]

    result = subprocess.run(words, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stdout.startswith("error[PC401]: there is no module 'plam'")
    assert result.stderr == ""


def test_closed_pipe_is_quiet(folder: Path) -> None:
    """A reader that goes away ends the command without a word, as it ends any other."""
    reading, writing = os.pipe()
    os.close(reading)

    words = [sys.executable, "-m", "promptcache", "check", "travel.xml"]
    result = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)

    assert (result.returncode, result.stderr) == (141, "")
