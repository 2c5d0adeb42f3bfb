"""The examples of docs/testing.md run as the page shows them."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
STORY = "A mistake, and the test that finds it"

PATIENT = """
from hypothesis import HealthCheck, settings
settings.register_profile("patient", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("patient")
"""
"""On a busy machine a check of speed says how busy it is."""


def blocks(language: str, section: str = STORY) -> list[str]:
    """The code of a section, by default of the story, in one language."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for written_in, code in found if written_in == language]


def run(pytester: pytest.Pytester, schema: str, section: str = STORY) -> pytest.RunResult:
    """Run the test of a section on a schema."""
    (test,) = blocks("python", section)
    Path("shop.xml").write_text(schema, encoding="utf-8")
    pytester.makepyfile(test_shop=test)
    pytester.makeconftest(PATIENT)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider")


@pytest.mark.parametrize("section", [STORY, "The smallest prompt"])
def test_the_mistake_is_found_and_shrunk(section: str, pytester: pytest.Pytester) -> None:
    """The test fails on the schema as it is first written, and the report is that of the page."""
    (report,) = blocks("")

    result = run(pytester, blocks("xml")[0], section)

    result.assert_outcomes(failed=1)
    found = result.stdout.str()
    assert all(line in found for line in report.splitlines())


def test_the_mend_mends(pytester: pytest.Pytester) -> None:
    """With the line of the page in place of the old one, the test passes."""
    schema, line = blocks("xml")
    old = next(each for each in schema.splitlines() if 'name="refund"' in each)

    run(pytester, schema.replace(f"{old}\n", line)).assert_outcomes(passed=1)


@pytest.mark.long
def test_the_example_of_fidelity_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the page passes for the schema of the page, with the demo model."""
    monkeypatch.setattr(import_module("promptcache.fidelity.measure"), "MIN_ROUNDS", 1)
    (code,) = blocks("python", "Fidelity")
    (tmp_path / "shop.xml").write_text(blocks("xml")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)

    names["test_reuse_is_good_enough"]()
