"""Rules of a schema as propositions over module paths.

A prompt's selection is checked by plain evaluation, in time linear in the selection. The solver computes the
implications of all rules together (`solver`, `backbone`). The root is a module with the path "", and always
present.
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
    """Kind of declaration that a rule comes from."""

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
    """Rule that demands one of `then` if all of `when` are present; with an empty `then`, it forbids `when` together.

    `declared` is the rule of a `rules` element that this implication follows from, else None.
    """

    kind: RuleKind
    when: tuple[str, ...]
    then: frozenset[str]
    span: Span
    declared: Check | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusive:
    """Rule that allows at most one of the members. A module is a member of at most one such rule."""

    kind: RuleKind
    parent: str
    members: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Rule of a `rules` element: `words` describe its demand, `message` is the author's text for a broken rule."""

    kind: RuleKind
    test: Test | Cardinality
    words: str
    message: str | None
    span: Span

    @property
    def modules(self) -> frozenset[str]:
        """Modules that occur in the rule."""
        return frozenset(self.test.modules) if isinstance(self.test, Cardinality) else modules_of(self.test)

    def holds(self, present: Set[str], num_touched: int) -> bool:
        """Return whether a selection keeps the rule; `num_touched` modules of the rule are present."""
        if isinstance(self.test, Cardinality):
            return self.test.low <= num_touched and (self.test.high is None or num_touched <= self.test.high)
        return holds(self.test, present)


Rule: TypeAlias = Implication | Exclusive | Check

BrokenRule: TypeAlias = Implication | Exclusive
"""A broken rule. A broken `Check` is given as an implication of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """Union member that is added if the parent is present and the prompt names no member."""

    parent: str
    members: frozenset[str]
    member: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules of a schema, indexed by module.

    Attributes:
        order: Every module path with its index in document order; "" comes first.
        rules: In document order; rules of `rules` elements come last.
        triggers: For each module, the implications that its presence can break.
        union_of: For each member of a union, the rule that says "at most one".
        defaults: For each module (or ""), the unions directly under it that have a default.
        checks: The rules of `rules` elements.
        touching: For each module, the indices of the checks that it occurs in.
        standing: The indices of the checks that the empty selection breaks.
        of_members: The rules of `rules` elements that name members of collections. They are no part of `rules`: the
            solver does not know members, which come and go.
    """

    order: Mapping[str, int] = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    triggers: Mapping[str, tuple[Implication, ...]] = field(repr=False)
    union_of: Mapping[str, Exclusive] = field(repr=False)
    defaults: Mapping[str, tuple[Default, ...]] = field(repr=False)
    checks: tuple[Check, ...] = field(repr=False)
    touching: Mapping[str, tuple[int, ...]] = field(repr=False)
    standing: tuple[int, ...] = field(repr=False)
    of_members: tuple[Check, ...] = field(default=(), repr=False)

    def complete(self, named: Set[str]) -> dict[str, Default | None]:
        """Add the union defaults to a set of named modules.

        Returns:
            Every module present, "" included, with the default that added it, or None for a named module.
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
        """Yield the rules that a complete set of modules ("" included) breaks, in time linear in the set.

        A broken rule of a `rules` element is given as a broken implication of it.
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

    def broken_by_members(self, present: Set[str]) -> Iterator[Implication]:
        """Yield the broken rules over members, as `broken` does; `present` has modules, members and ""."""
        for check in self.of_members:
            if not check.holds(present, len(check.modules & present)):
                yield self._implication(check, present)

    def _implication(self, check: Check, present: Set[str]) -> Implication:
        """Return an implication of a broken check that is broken too."""
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
        ordered = tuple(sorted(when, key=lambda module: self.order.get(module, len(self.order)))) or ("",)
        return Implication(kind=check.kind, when=ordered, then=then, span=check.span, declared=check)


def index_rules(
    modules: tuple[str, ...], rules: tuple[Rule, ...], defaults: tuple[Default, ...], of_members: tuple[Check, ...]
) -> Rules:
    """Index rules over the given module paths, which are in document order.

    An implication is indexed by the last module of `when`: it can only be broken if that module is present.
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
        of_members=of_members,
    )
