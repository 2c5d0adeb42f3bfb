"""Writes the lists of docs/models.md from the tested families and a survey of all other types of transformers.

`python -m tests.models_page`; a minute or two. All other words of the page are written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers

from tests.families import FAMILIES
from tests.models_survey import TYPES, Finding, Outcome, survey

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
TESTED = "within 1e-5 in float32 (max|a-b| / max|b|):\n\n"
ACCEPTED = "within 1e-5 in float32:\n\n"
REFUSED = "| type | reason |\n|---|---|\n"
OTHERS = "\nis loaded: "


def main() -> None:
    """Write the lists, and the versions of torch and transformers; a type that is accepted and wrong ends it."""
    by_outcome: dict[Outcome, list[Finding]] = {outcome: [] for outcome in Outcome}
    for finding in map(survey, TYPES):
        by_outcome[finding.outcome].append(finding)
    assert not by_outcome[Outcome.WRONG], by_outcome[Outcome.WRONG]
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), by_outcome), encoding="utf-8")


def written(page: str, by_outcome: dict[Outcome, list[Finding]]) -> str:
    """Return the page with other lists and versions."""
    page = re.sub(r"\(torch \S+, ", f"(torch {torch.__version__}, ", page)
    page = re.sub(r"ransformers \d+\.\d+\.\d+", f"ransformers {transformers.__version__}", page)
    page = with_lines(page, TESTED, ["; ".join(FAMILIES) + "."])
    page = with_lines(page, ACCEPTED, [names(by_outcome[Outcome.RIGHT])])
    reasons = ((each.model_type, each.reason.partition(")")[2].lstrip(": ")) for each in by_outcome[Outcome.REFUSED])
    page = with_lines(page, REFUSED, (f"| {model_type} | {reason} |" for model_type, reason in reasons))
    return with_lines(page, OTHERS, [names(by_outcome[Outcome.NOT_BUILT])])


def names(findings: list[Finding]) -> str:
    """Return the types of findings."""
    return ", ".join(finding.model_type for finding in findings) + "."


def with_lines(page: str, before: str, lines: Iterable[str]) -> str:
    """Return a page with other lines in place of those between a text and the next empty line or the end."""
    head, _, rest = page.partition(before)
    stop = rest.find("\n\n")
    return head + before + "\n".join(lines) + (rest[stop:] if stop >= 0 else "\n")


if __name__ == "__main__":
    main()
