"""`promptcache bench check`: the whole command, measured from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from promptcache.bench.checking import Document, _check, measure_checking
from promptcache.bench.generated import generated_schema
from promptcache.cli.app import app
from promptcache.diagnostics import PromptCacheError
from promptcache.language import check_schema, parse_schema

WORDS = ["bench", "check", "--modules", "40", "--rules", "4", "--size", "20 kB", "--repeats", "2", "--json"]


def test_both_schemas_are_measured_without_torch() -> None:
    """The starter and a schema of the sizes asked for each have a time and a peak for every round; torch stays out."""
    code = f"""
import sys
from promptcache.cli.app import app
try:
    app({WORDS})
except SystemExit as end:
    assert end.code == 0, end.code
print([name for name in ("torch", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *_, line, loaded = done.stdout.splitlines()

    assert loaded == "[]"
    data = json.loads(line)
    small, large = data["rows"]
    assert (data["bench"], small["document"]) == ("check", "starter")
    assert (large["modules"], large["rules"]) == (40, 4)
    assert 19_000 < large["bytes"] <= 20_000
    for row in (small, large):
        assert len(row["seconds"]) == len(row["peak_bytes"]) == 2
        assert all(0 < seconds < 60 for seconds in row["seconds"])
        assert all(5e6 < peak < 1e9 for peak in row["peak_bytes"])


def test_memory_of_the_measuring_process_does_not_count(tmp_path: Path) -> None:
    """The peak is that of the command, however much memory the process has that asks for it."""
    file = tmp_path / "schema.xml"
    file.write_text('<schema name="s"><module name="a">a</module></schema>', encoding="utf-8")
    ballast = b"x" * 500_000_000

    _, peak = _check(file)

    assert peak < len(ballast) / 2


@pytest.mark.parametrize(("modules", "rules", "nbytes"), [(40, 9, 8_000), (333, 50, 60_000), (2_000, 500, 1_000_000)])
def test_generated_schema_has_its_sizes_and_no_findings(modules: int, rules: int, nbytes: int) -> None:
    """A generated schema has so many modules, rules and bytes, is the same every time, and has no findings."""
    text = generated_schema(modules, rules, nbytes)

    checked = check_schema(parse_schema(text))
    assert (len(checked.modules), len(checked.rules.checks), checked.warnings) == (modules, rules, ())
    assert nbytes - modules <= len(text.encode()) <= nbytes
    assert text == generated_schema(modules, rules, nbytes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "9 TB"], "a document has at most 8,388,608 bytes"),
        (["--size", "2 kB"], "2,000 modules and 500 rules do not fit into 2,000 bytes: give a larger --size"),
        (["--modules", "9" * 12], "do not fit into 1,000,000 bytes"),
        (["--modules", "39", "--rules", "1"], "rules need at least 40 modules: give more --modules, or --rules 0"),
        (["--repeats", "0"], "Invalid value for '--repeats'"),
        (["--size", "big"], "'big' is no size"),
    ],
)
def test_sizes_that_cannot_be_made_are_told(words: list[str], message: str) -> None:
    """What no document can have is refused at once, with the option that would mend it."""
    result = CliRunner().invoke(app, ["bench", "check", *words])

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_document_with_errors_is_no_measurement() -> None:
    """Where the command ends with findings, they are told instead of a time."""
    with pytest.raises(PromptCacheError, match=r"ended with 1: error\[PC208\]"):
        measure_checking([Document(name="s", text='<schema name="s"><module name="a" requires="b"/></schema>')], 1)
