"""What testing a schema costs: `python -m promptcache.testing.figures schemas/*.xml` prints it as a table.

Comes in: schema files. Goes out: for each its modules and valid selections, how small a covering of pairs is beside
what no covering can beat, and the processor time of a thousand random prompts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import Phase, given, settings

from promptcache.testing.cases import subject_prompts
from promptcache.testing.cover import covering_selections, largest_incompatible, valid_pairs
from promptcache.testing.selecting import list_selections
from promptcache.testing.subject import Subject

NUM_PROMPTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was counted and measured for one schema; no covering of its pairs is smaller than `least`."""

    name: str
    num_modules: int
    num_selections: int
    num_pairs: int
    covering: int
    least: int
    seconds: float


def figures(path: str | Path) -> Figures:
    """Count and measure one schema."""
    subject = Subject(Path(path))
    schema = subject.schema
    return Figures(
        name=schema.name,
        num_modules=len(schema.modules),
        num_selections=len(list_selections(schema) or ()),
        num_pairs=len(valid_pairs(schema)),
        covering=len(list(covering_selections(schema))),
        least=largest_incompatible(schema),
        seconds=seconds_for(subject, NUM_PROMPTS),
    )


def seconds_for(subject: Subject, num_prompts: int) -> float:
    """Return the processor time of that many random prompts with their plans, under Hypothesis' own health checks."""

    @settings(max_examples=num_prompts, database=None, derandomize=True, deadline=None, phases=[Phase.generate])
    @given(case=subject_prompts(subject))
    def draw(case: object) -> None:
        pass

    started = time.process_time()
    draw()
    return time.process_time() - started


def table(found: Sequence[Figures]) -> str:
    """Return figures as a table in Markdown."""
    columns = ("schema", "modules", "selections", "valid pairs", "covering", "at least", f"{NUM_PROMPTS:,} prompts")
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    return head + "".join(
        f"| {each.name} | {each.num_modules} | {each.num_selections:,} | {each.num_pairs:,} | {each.covering}"
        f" | {each.least} | {each.seconds:.1f} s |\n"
        for each in found
    )


if __name__ == "__main__":
    sys.stdout.write(table([figures(path) for path in sys.argv[1:]]))
