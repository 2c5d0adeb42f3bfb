"""The table of pairs of features: `python -m tests.requests.table [WORKLOADS]` prints it as markdown.

It counts the requests of that many drawn workloads, by default of those that `make test` draws. No model is run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import combinations

from tests.requests.features import FEATURES, count_pairs, possible_pairs, reason_against
from tests.requests.independent import run_over
from tests.requests.workloads import workloads

NUM_WORKLOADS = 120


def counted(num_workloads: int) -> Counter[tuple[str, str]]:
    """Return the number of requests that have each pair of features; a pair of equal ones counts the feature."""
    counts: Counter[tuple[str, str]] = Counter()
    run_over(workloads(), partial(count_pairs, counts), range(num_workloads))
    return counts


def lines(counts: Counter[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of the table, then the pairs that cannot occur with the reason, and those that were not drawn."""
    yield "| | | " + " | ".join(str(number) for number in range(1, len(FEATURES) + 1)) + " |"
    yield "|---|---|" + "---|" * len(FEATURES)
    for number, name in enumerate(FEATURES, 1):
        cells = (_cell(name, other, counts) for other in FEATURES[:number])
        yield f"| {number} | {name} | " + " | ".join([*cells, *[""] * (len(FEATURES) - number)]) + " |"
    yield ""
    for reason, pairs in _by_reason().items():
        yield f"- {reason}: {'; '.join(f'{one} and {other}' for one, other in pairs)}"
    yield ""
    missing = [f"{one} and {other}" for one, other in possible_pairs() if not counts[one, other]]
    yield f"Not drawn: {'; '.join(missing) or 'none'}"


def _cell(name: str, other: str, counts: Counter[tuple[str, str]]) -> str:
    is_possible = name == other or reason_against(name, other) is None
    return str(counts[other, name]) if is_possible else "-"


def _by_reason() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for pair in combinations(FEATURES, 2):
        if (reason := reason_against(*pair)) is not None:
            found.setdefault(reason, []).append(pair)
    return found


if __name__ == "__main__":
    made = counted(int(sys.argv[1]) if len(sys.argv) > 1 else NUM_WORKLOADS)
    print(*lines(made), sep="\n")  # noqa: T201 # what it is for
