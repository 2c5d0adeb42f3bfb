"""The rules of a schema: propositions over module paths.

A prompt's selection is checked by plain evaluation, in time linear in the selection. What follows from all rules
together is asked of a solver (`solver`, `backbone`). The root is a module too, called "", and always present.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TypeAlias

from promptcache.diagnostics import Span
from promptcache.language.syntax.conditions import Cardinality, Test, broken_clause, holds, modules_of


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
class Implication:
    """Whenever all of `when` are present, at least one of `then` is; with an empty `then`, they never all are.

    `declared` is set where this is what a selection breaks of a rule in a `rules` element.
    """

    kind: RuleKind
    when: tuple[str, ...]
    then: frozenset[str]
    span: Span
    declared: Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusive:
    """At most one of the members is present; no module is a member of two."""

    kind: RuleKind
    parent: str
    members: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A rule of a `rules` element: `words` say what it demands, `message` is the author's text for a broken rule."""

    kind: RuleKind
    test: Test | Cardinality
    words: str
    message: str | None
    span: Span

    @property
    def modules(self) -> frozenset[str]:
        """The modules in the rule."""
        return frozenset(self.test.modules) if isinstance(self.test, Cardinality) else modules_of(self.test)

    def holds(self, present: Set[str], num_touched: int) -> bool:
        """Return whether a selection keeps the rule; `num_touched` of its modules are present."""
        if isinstance(self.test, Cardinality):
            return self.test.low <= num_touched and (self.test.high is None or num_touched <= self.test.high)
        return holds(self.test, present)


Rule: TypeAlias = Implication | Exclusive | Check

BrokenRule: TypeAlias = Implication | Exclusive
"""What a selection breaks; of a `Check`, an implication of it."""


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
        rules: In document order, those of `rules` elements last.
        triggers: For each module, the implications that its presence can break.
        union_of: For each member of a union, the rule that says "at most one".
        defaults: For each module (or ""), the unions directly under it that have a default.
        checks: The rules of `rules` elements.
        touching: For each module, the numbers of the checks that it occurs in.
        standing: The numbers of the checks that the empty selection breaks.
    """

    order: Mapping[str, int] = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    triggers: Mapping[str, tuple[Implication, ...]] = field(repr=False)
    union_of: Mapping[str, Exclusive] = field(repr=False)
    defaults: Mapping[str, tuple[Default, ...]] = field(repr=False)
    checks: tuple[Check, ...] = field(repr=False)
    touching: Mapping[str, tuple[int, ...]] = field(repr=False)
    standing: tuple[int, ...] = field(repr=False)

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

    def broken(self, present: Set[str]) -> Iterator[BrokenRule]:
        """Yield what a complete set of modules ("" among them) breaks, in time linear in that set.

        Of a rule in a `rules` element, that is an implication of it which is broken.
        """
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
        touched = dict.fromkeys(self.standing, 0)
        if self.checks:
            for module in present:
                for number in self.touching.get(module, ()):
                    touched[number] = touched.get(number, 0) + 1
        for number in sorted(touched):
            if not self.checks[number].holds(present, touched[number]):
                yield self._implication(self.checks[number], present)

    def _implication(self, check: Check, present: Set[str]) -> Implication:
        """Return an implication of a broken check that is broken, too."""
        if isinstance(check.test, Cardinality):
            used = [module for module in check.test.modules if module in present]
            if len(used) < check.test.low:
                absent = (module for module in check.test.modules if module not in present)
                needed = islice(absent, len(check.test.modules) - check.test.low + 1)
                when, then = frozenset[str](), frozenset(needed)
            else:
                when, then = frozenset(used[: (check.test.high or 0) + 1]), frozenset[str]()
        else:
            when, then = broken_clause(check.test, present)
        ordered = tuple(sorted(when, key=self.order.__getitem__)) or ("",)
        return Implication(kind=check.kind, when=ordered, then=then, span=check.span, declared=check)


def index_rules(modules: tuple[str, ...], rules: tuple[Rule, ...], defaults: tuple[Default, ...]) -> Rules:
    """Index rules over the given module paths, which are in document order.

    An implication is indexed by the last of its `when`: it can only be broken when that module is present.
    """
    checks = tuple(rule for rule in rules if isinstance(rule, Check))
    touching: dict[str, list[int]] = {}
    for number, check in enumerate(checks):
        for module in check.modules:
            touching.setdefault(module, []).append(number)
    triggers: dict[str, list[Implication]] = {}
    union_of: dict[str, Exclusive] = {}
    for rule in rules:
        if isinstance(rule, Implication) and rule.kind is not RuleKind.NESTING:
            triggers.setdefault(rule.when[-1], []).append(rule)
        elif isinstance(rule, Exclusive):
            union_of.update(dict.fromkeys(rule.members, rule))
    by_parent: dict[str, list[Default]] = {}
    for default in defaults:
        by_parent.setdefault(default.parent, []).append(default)
    return Rules(
        order={module: index for index, module in enumerate(("", *modules))},
        rules=rules,
        triggers={module: tuple(found) for module, found in triggers.items()},
        union_of=union_of,
        defaults={parent: tuple(found) for parent, found in by_parent.items()},
        checks=checks,
        touching={module: tuple(found) for module, found in touching.items()},
        standing=tuple(number for number, check in enumerate(checks) if not check.holds(frozenset({""}), 0)),
    )
