"""Find the modules that a scaffold covers, and the scaffolds that a prompt uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from promptcache.language import CheckedScaffold


def covered_modules(scaffold: CheckedScaffold, modules: Iterable[str]) -> Iterator[str]:
    """Yield each of `modules` that has a variant of its own in `scaffold`.

    These are the members, and their descendants that are guaranteed if all members are present.
    """
    members = frozenset(scaffold.members)
    return (path for path in modules if path in scaffold.guaranteed and not members.isdisjoint(lineage(path)))


def scaffolds_in_use(scaffolds: Iterable[CheckedScaffold], modules: Sequence[str]) -> dict[str, str]:
    """Return the name of the scaffold in use for every selected module that has one.

    A scaffold is used completely or not at all. In declared order, it is used if all its members are selected and
    no earlier scaffold covers one of its modules.
    """
    selected = frozenset(modules)
    taken: dict[str, str] = {}
    for scaffold in scaffolds:
        if selected.issuperset(scaffold.members):
            covered = tuple(covered_modules(scaffold, modules))
            if taken.keys().isdisjoint(covered):
                taken.update(dict.fromkeys(covered, scaffold.name))
    return taken


def lineage(path: str) -> Iterator[str]:
    """Yield `path` and the paths of its enclosing modules."""
    while path:
        yield path
        path = path.rpartition("/")[0]
