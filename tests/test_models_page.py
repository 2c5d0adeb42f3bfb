"""docs/models.md names the tested models."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from tests.families import FAMILIES, REFUSED
from tests.models_survey import TYPES
from tests.test_models_survey import MIN_TYPES

PAGE = Path(__file__).parents[1] / "docs" / "models.md"


def test_models_page_lists_every_claimed_family() -> None:
    """The page has a row for each family that the laws run on, with its way of linking, and each refusal."""
    rows = table("Tested types")

    expected = {
        (family.removesuffix(" (concatenated)"), "concatenated" if "concatenated" in family else "segmented")
        for family in FAMILIES
    }
    assert {(row[0], row[1]) for row in rows} == expected
    assert all(f"- {family}: `" in PAGE.read_text(encoding="utf-8") for family in REFUSED)


def test_distances_on_the_page_keep_the_law() -> None:
    """No distance that was measured in float32 is above the law's tolerance."""
    assert all(float(row[2]) < 1e-5 for row in table("Tested types"))
    assert all(max(float(row[2]), float(row[3])) < 1e-5 for row in table("Accepted by the self-test"))


@pytest.mark.skipif(
    f"transformers {transformers.__version__}" not in PAGE.read_text(encoding="utf-8"),
    reason="the page was made with another version of transformers",
)
def test_models_page_says_what_became_of_every_type() -> None:
    """Each type of the installed transformers is tested, accepted, refused with a reason, or named as not surveyed."""
    accepted = {row[0] for row in table("Accepted by the self-test")}
    refused = {row[0]: row[1] for row in table("Refused types")}
    others = set(section("Refused types").rpartition("is loaded: ")[2].rstrip(".\n").split(", "))

    assert accepted | refused.keys() | others == set(TYPES)
    assert len(accepted) + len(refused) >= MIN_TYPES
    assert all(refused.values())


def section(title: str) -> str:
    """Return the text below a heading of the page."""
    return PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def table(title: str) -> list[list[str]]:
    """Return the cells of the table below a heading, its head left out."""
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]
