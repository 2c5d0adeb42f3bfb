"""Which modules a scaffold covers, and which scaffolds a prompt uses.

Comes in: checked scaffolds and the modules that a prompt selects. Goes out: module paths. This file knows no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from promptcache.language.checked import CheckedScaffold


def covered_modules(scaffold: CheckedScaffold, modules: Iterable[str]) -> Iterator[str]:
    """Yield those of `modules` that have a state of their own in `scaffold`.

    These are its members and their descendants, as far as they are guaranteed when all members are present.
    """
    members = frozenset(scaffold.members)
    return (path for path in modules if path in scaffold.guaranteed and not members.isdisjoint(_lineage(path)))


def scaffolds_in_use(scaffolds: Iterable[CheckedScaffold], modules: Sequence[str]) -> dict[str, str]:
    """Return the scaffold whose state serves a module, for every selected module that has one in use.

    A scaffold is used whole or not at all: in declared order, when all its members are selected and an earlier scaffold
    has taken none of the modules it covers.
    """
    selected = frozenset(modules)
    taken: dict[str, str] = {}
    for scaffold in scaffolds:
        if selected.issuperset(scaffold.members):
            covered = tuple(covered_modules(scaffold, modules))
            if taken.keys().isdisjoint(covered):
                taken.update(dict.fromkeys(covered, scaffold.name))
    return taken


def _lineage(path: str) -> Iterator[str]:
    """Yield `path` and the paths of the modules that hold it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
