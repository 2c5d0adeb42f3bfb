"""The rules of a schema: propositions over module paths.

Comes in: rules, one for every claim that the schema makes about which modules stand together. Goes out: whether a
selection keeps them, found by plain evaluation in time linear in the selection. What follows from all rules together is
asked of a solver, elsewhere (`backbone`, `explain`, `counting`). The root is a module too, called "", and always
present. This file knows no XML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from promptcache.diagnostics import Span
from promptcache.language.syntax.conditions import Count, Test, holds, modules_of


class RuleKind(StrEnum):
    """Where a rule comes from."""

    NESTING = "nesting"
    UNION = "union"
    CHOICE = "choice"
    REQUIRED = "required"
    REQUIRES = "requires"
    EXCLUDES = "excludes"
    AFTER = "after"
    REQUIRE = "require"
    EXCLUDE = "exclude"
    CHOOSE = "choose"
    ASSERT = "assert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A rule of a `rules` element: `words` say what it demands, `message` what its author says when it is broken."""

    kind: RuleKind
    words: str
    message: str | None
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Implication:
    """Whenever all of `when` are present, at least one of `then` is; with an empty `then`, they never all are.

    `declared` is the rule that this is a clause of, if it is one of several that say together what that rule says.
    """

    kind: RuleKind
    when: tuple[str, ...]
    then: frozenset[str]
    span: Span
    declared: Declaration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusive:
    """At most one of the members is present; no module is a member of two."""

    kind: RuleKind
    parent: str
    members: tuple[str, ...]
    span: Span


Rule: TypeAlias = Implication | Exclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A rule of a `rules` element as it is evaluated, and the clauses that say the same."""

    test: Test | Count
    clauses: tuple[Implication, ...]

    @property
    def modules(self) -> frozenset[str]:
        """The modules that it speaks of."""
        return frozenset(self.test.modules) if isinstance(self.test, Count) else modules_of(self.test)

    def holds(self, present: Set[str], num_touched: int) -> bool:
        """Whether a selection keeps the rule; `num_touched` of its modules are present."""
        if isinstance(self.test, Count):
            return self.test.low <= num_touched and (self.test.high is None or num_touched <= self.test.high)
        return holds(self.test, present)

    def broken(self, present: Set[str]) -> Implication:
        """Return a clause that a selection breaks; one that says what cannot stand together, if there is any."""
        broken = [
            clause
            for clause in self.clauses
            if present.isdisjoint(clause.then) and all(module in present for module in clause.when)
        ]
        return next((clause for clause in broken if not clause.then), broken[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """The member of a union that is taken when its parent is present and no member is named."""

    parent: str
    members: frozenset[str]
    member: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules of a schema, indexed by module.

    Attributes:
        order: Every module path with its place in document order; "" comes first.
        rules: In document order, the clauses of `checks` last.
        triggers: For each module, the implications that its presence can break.
        union_of: For each member of a union, the rule that says "at most one".
        defaults: For each module (or ""), the unions directly under it that have a default.
        checks: What `rules` elements say. Their clauses are among `rules`, and not among `triggers`.
        touching: For each module, the numbers of the checks that speak of it.
        standing: The numbers of the checks that the empty selection breaks: no module need be present for that.
        clauses: For each module, the clauses of checks that its presence can break.
    """

    order: Mapping[str, int] = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    triggers: Mapping[str, tuple[Implication, ...]] = field(repr=False)
    union_of: Mapping[str, Exclusive] = field(repr=False)
    defaults: Mapping[str, tuple[Default, ...]] = field(repr=False)
    checks: tuple[Check, ...] = field(default=(), repr=False)
    touching: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    standing: tuple[int, ...] = field(default=(), repr=False)
    clauses: Mapping[str, tuple[Implication, ...]] = field(default_factory=dict, repr=False)

    def complete(self, named: Set[str]) -> dict[str, Default | None]:
        """Add the defaults to a set of named modules.

        Returns:
            Every module present, with the default that brought it, or None where it was named. "" is among them.
        """
        present: dict[str, Default | None] = {"": None, **dict.fromkeys(named)}
        waiting = list(present)
        while waiting:
            for default in self.defaults.get(waiting.pop(), ()):
                if present.keys().isdisjoint(default.members):
                    present[default.member] = default
                    waiting.append(default.member)
        return present

    def broken(self, present: Set[str]) -> Iterator[Rule]:
        """Yield the rules that a complete set of modules ("" among them) breaks, in time linear in that set."""
        members: dict[str, int] = {}
        for module in present:
            for rule in self.triggers.get(module, ()):
                if present.isdisjoint(rule.then) and all(other in present for other in rule.when):
                    yield rule
            union = self.union_of.get(module)
            if union is not None:
                members[union.members[0]] = members.get(union.members[0], 0) + 1
                if members[union.members[0]] == 2:
                    yield union
        yield from self._broken_checks(present)

    def _broken_checks(self, present: Set[str]) -> Iterator[Rule]:
        touched = dict.fromkeys(self.standing, 0)
        if self.checks:
            for module in present:
                for number in self.touching.get(module, ()):
                    touched[number] = touched.get(number, 0) + 1
        for number in sorted(touched):
            if not self.checks[number].holds(present, touched[number]):
                yield self.checks[number].broken(present)


def index_rules(
    modules: tuple[str, ...], rules: tuple[Rule, ...], defaults: tuple[Default, ...], checks: tuple[Check, ...] = ()
) -> Rules:
    """Index rules over the given module paths, which stand in document order.

    A rule is looked up under the last of its `when`: it can only be broken when that one is present.
    """
    by_last: dict[str, list[Implication]] = {}
    touching: dict[str, list[int]] = {}
    for number, check in enumerate(checks):
        for clause in check.clauses:
            by_last.setdefault(clause.when[-1], []).append(clause)
        for module in check.modules:
            touching.setdefault(module, []).append(number)
    triggers: dict[str, list[Implication]] = {}
    union_of: dict[str, Exclusive] = {}
    for rule in rules:
        if isinstance(rule, Implication):
            if rule.kind is not RuleKind.NESTING:
                triggers.setdefault(rule.when[-1], []).append(rule)
        else:
            union_of.update(dict.fromkeys(rule.members, rule))
    by_parent: dict[str, list[Default]] = {}
    for default in defaults:
        by_parent.setdefault(default.parent, []).append(default)
    return Rules(
        order={module: index for index, module in enumerate(("", *modules))},
        rules=(*rules, *(clause for check in checks for clause in check.clauses)),
        triggers={module: tuple(found) for module, found in triggers.items()},
        union_of=union_of,
        defaults={parent: tuple(found) for parent, found in by_parent.items()},
        checks=checks,
        touching={module: tuple(found) for module, found in touching.items()},
        standing=tuple(number for number, check in enumerate(checks) if not check.holds(frozenset({""}), 0)),
        clauses={module: tuple(found) for module, found in by_last.items()},
    )
