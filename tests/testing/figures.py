"""The cost of testing schemas: `python -m tests.testing.figures schemas/*.xml` prints it as a table.

For each schema it has the modules and valid selections, the size of a covering of pairs, a lower bound of that size, and
the processor time of a thousand random prompts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import Phase, given, settings

from promptcache.language import CheckedSchema, open_solver
from promptcache.testing import Subject
from promptcache.testing.cases import subject_prompts
from promptcache.testing.cover import Choices, covering_selections, valid_tuples
from promptcache.testing.selection import list_selections

NUM_PROMPTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The counts and times of one schema; no covering of its pairs is smaller than `least`."""

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


def shown_by(schema: CheckedSchema, modules: Collection[str]) -> Choices:
    """Return every choice of a selection."""
    return frozenset(place + 1 if path in modules else -place - 1 for path, place in schema.rules.order.items() if path)


def valid_pairs(schema: CheckedSchema) -> list[Choices]:
    """Return every pair of choices that some valid selection shows."""
    with open_solver(schema.rules) as solver:
        return list(valid_tuples(solver, len(schema.rules.order), 2))


def largest_incompatible(schema: CheckedSchema) -> int:
    """Return the size of a large set of valid pairs of which no two fit into one selection: no covering is smaller.

    It is collected greedily from every start; pairs are compared by the selections that show them, the rarest first.

    Raises:
        ValueError: there are too many selections to list.
    """
    selections = list_selections(schema)
    if selections is None:
        raise ValueError(f"schema {schema.name!r} has too many selections to list")
    listed = [shown_by(schema, modules) for modules in selections]
    pairs = valid_pairs(schema)
    masks = [sum(1 << place for place, choices in enumerate(listed) if pair <= choices) for pair in pairs]
    masks.sort(key=int.bit_count)
    best = 0
    for start in masks:
        taken, size = start, 1
        for mask in masks:
            if not mask & taken:
                taken, size = taken | mask, size + 1
        best = max(best, size)
    return best


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
