"""docs/models.md names what is claimed."""

from __future__ import annotations

from pathlib import Path

from tests.families import FAMILIES, REFUSED

PAGE = Path(__file__).parents[1] / "docs" / "models.md"


def test_models_page_lists_every_claimed_family() -> None:
    """The page has a row for each family that the laws run on, with its way of linking, and each refusal."""
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]

    expected = {
        (family.removesuffix(" (concatenated)"), "concatenated" if "concatenated" in family else "segmented")
        for family in FAMILIES
    }
    assert {(row[0].removeprefix("| "), row[1]) for row in rows} == expected
    assert all(f"- {family}: `" in PAGE.read_text(encoding="utf-8") for family in REFUSED)


def test_distances_on_the_page_keep_the_law() -> None:
    """No distance that was measured in float32 is above the law's tolerance."""
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]

    assert all(float(row[2]) < 1e-5 for row in rows)
