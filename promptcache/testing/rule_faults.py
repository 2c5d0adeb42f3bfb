"""Selections that break exactly one rule of their schema, and what must be said about each.

Comes in: a checked schema and valid selections. Goes out: selections near them, with a code and the modules it is
about. Knows no XML; a selection that breaks two rules is left out, since it has no one first fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice

from promptcache.language.checked import CheckedSchema
from promptcache.language.rules.rules import BrokenRule, Default, Exclusive, RuleKind
from promptcache.language.syntax.names import ancestors
from promptcache.testing.selecting import can_be_completed

_MAX_PAIRS = 6
"""How many pairs of modules are tried: each asks the solver."""

_CODES = {
    RuleKind.UNION: ("two members of a union", "PC408"),
    RuleKind.EXCLUDES: ("modules that exclude each other", "PC410"),
    RuleKind.REQUIRED: ("required module missing", "PC406"),
    RuleKind.CHOICE: ("union choice missing", "PC407"),
    RuleKind.REQUIRES: ("requires broken", "PC409"),
    RuleKind.AFTER: ("after broken", "PC414"),
    RuleKind.REQUIRE: ("require broken", "PC418"),
    RuleKind.EXCLUDE: ("exclude broken", "PC418"),
    RuleKind.ASSERT: ("assert broken", "PC418"),
    RuleKind.CHOOSE: ("wrong number chosen", "PC419"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenSelection:
    """Modules to name, and the diagnostic that they get at the last of `places` in the prompt ("" is the prompt)."""

    named: frozenset[str]
    mutation: str
    code: str
    places: tuple[str, ...]


def broken_selections(schema: CheckedSchema, valid: frozenset[str], other: frozenset[str]) -> Iterator[BrokenSelection]:
    """Yield what becomes of two valid selections when a module is left out or added, or when they are joined."""
    for named in dict.fromkeys(_neighbours(schema, valid, other)):
        present = schema.rules.complete(named)
        broken = list(schema.rules.broken(present.keys()))
        if len(broken) == 1 and not _lacks_arguments(schema, named, present.keys()):
            found = _judged(schema, named, present, broken[0])
            if found is not None:
                yield found


def incompatible_pairs(
    schema: CheckedSchema, first: frozenset[str], second: frozenset[str]
) -> Iterator[BrokenSelection]:
    """Yield two modules, one of each valid selection, that no selection has both, although no one rule says so."""
    pairs = ((one, other) for one in _own(schema, first - second) for other in _own(schema, second - first))
    for one, other in islice(pairs, _MAX_PAIRS):
        named = frozenset(path for inner in (one, other) for path in (inner, *ancestors(inner)))
        present = schema.rules.complete(named).keys()
        clashes = (rule for rule in schema.rules.broken(present) if isinstance(rule, Exclusive) or not rule.then)
        if any(True for _ in clashes) or can_be_completed(schema, named):
            continue
        if not _lacks_arguments(schema, named, present):
            mutation = "modules that cannot be used together"
            yield BrokenSelection(named=named, mutation=mutation, code="PC417", places=(one, other))


def _own(schema: CheckedSchema, modules: frozenset[str]) -> list[str]:
    """Return the modules in document order, without those that hold others of them."""
    outer = {path for module in modules for path in ancestors(module)}
    return sorted(modules - outer, key=schema.rules.order.__getitem__)


def _neighbours(schema: CheckedSchema, valid: frozenset[str], other: frozenset[str]) -> Iterator[frozenset[str]]:
    for base in dict.fromkeys((valid, other)):
        for path in schema.modules:
            if path in base:
                yield frozenset(module for module in base if module != path and not module.startswith(f"{path}/"))
            else:
                yield base.union((path, *ancestors(path)))
    yield valid | other


def _lacks_arguments(schema: CheckedSchema, named: Set[str], present: Set[str]) -> bool:
    """Whether a default would bring a module whose arguments nobody gives: a second fault."""
    return any(
        parameter.required
        for module in present
        if module and module not in named
        for parameter in schema.parameters[module].values()
    )


def _judged(
    schema: CheckedSchema, named: frozenset[str], present: Mapping[str, Default | None], rule: BrokenRule
) -> BrokenSelection | None:
    """Say what must be reported; None where the named modules could not be used together anyhow (PC417)."""
    mutation, code = _CODES[rule.kind]
    subjects = [path for path in rule.members if path in present] if isinstance(rule, Exclusive) else list(rule.when)
    if (isinstance(rule, Exclusive) or not rule.then) and named.issuperset(subjects):
        return BrokenSelection(named=named, mutation=mutation, code=code, places=tuple(subjects))
    if not can_be_completed(schema, named):
        return None
    default = next((found for path in subjects if (found := present[path])), None)
    place = subjects[0] if default is None else default.parent
    if place and place not in named:
        return None  # present by default only: the prompt has no reference to point at
    if default is None:
        return BrokenSelection(named=named, mutation=mutation, code=code, places=(place,))
    return BrokenSelection(named=named, mutation="default breaks a rule", code="PC411", places=(place,))
