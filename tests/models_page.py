"""Writes the lists of docs/models.md from the tested families and a survey of all other types of transformers.

`python -m tests.models_page`; a minute or two. All other words of the page are written by hand.
"""

import re
import textwrap
from pathlib import Path

import torch
import transformers

from tests.families import FAMILIES
from tests.models_survey import TYPES, Finding, Outcome, survey

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
TESTED, ACCEPTED, REFUSED, OTHERS = (f"<!-- {name} -->\n" for name in ("tested", "accepted", "refused", "others"))
_DETAIL = re.compile(r" \((configuration field|logits differ|they differ)[^)]*\)|^it |(?<=of )type [\w, ]+(?=;)")
"""What types that are refused for one reason differ in."""


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
    page = with_text(page, TESTED, "; ".join(FAMILIES) + ".")
    page = with_text(page, ACCEPTED, names(by_outcome[Outcome.RIGHT]))
    page = with_text(page, REFUSED, "\n".join(refused(by_outcome[Outcome.REFUSED])))
    return with_text(page, OTHERS, names(by_outcome[Outcome.NOT_BUILT]))


def refused(findings: list[Finding]) -> list[str]:
    """Return an entry for each reason, with the types that are refused for it."""
    by_reason: dict[str, list[Finding]] = {}
    for each in findings:
        reason = _DETAIL.sub("", each.reason.partition(")")[2].lstrip(": ")).replace(
            "layers of ;", "layers of other types;"
        )
        by_reason.setdefault(reason, []).append(each)
    return [f"- {reason}: {names(same)}" for reason, same in by_reason.items()]


def names(findings: list[Finding]) -> str:
    """Return the types of findings."""
    return ", ".join(finding.model_type for finding in findings) + "."


def with_text(page: str, before: str, text: str) -> str:
    """Return a page with another text, wrapped, in place of the one between a text and the next empty line or the end."""
    head, _, rest = page.partition(before)
    stop = rest.find("\n\n")
    lines = (
        textwrap.fill(line, 120, subsequent_indent="  " * line.startswith("- "), break_on_hyphens=False)
        for line in text.splitlines()
    )
    return head + before + "\n".join(lines) + (rest[stop:] if stop >= 0 else "\n")


if __name__ == "__main__":
    main()
