"""Rules of a schema as propositions over module paths.

A prompt's selection is checked by plain evaluation of the rules that its modules can break. The solver computes the
implications of all rules together (`solver`, `backbone`). The root is a module with the path "", and always present.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
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

    `declared` is the check that this implication follows from, else None.
    """

    kind: RuleKind
    when: tuple[str, ...]
    then: frozenset[str]
    span: Span
    declared: Check | None = None

    @property
    def modules(self) -> frozenset[str]:
        return self.then.union(self.when)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Rule of a union or of a `rules` element: its demand in words, and the author's message for a broken rule."""

    kind: RuleKind
    test: Test | Cardinality
    words: str
    message: str | None
    span: Span

    @property
    def modules(self) -> frozenset[str]:
        return frozenset(self.test.modules) if isinstance(self.test, Cardinality) else modules_of(self.test)

    def holds(self, present: Set[str], num_touched: int) -> bool:
        """Return whether a selection keeps the rule; `num_touched` modules of the rule are present."""
        if isinstance(self.test, Cardinality):
            return self.test.low <= num_touched and (self.test.high is None or num_touched <= self.test.high)
        return holds(self.test, present)


Rule: TypeAlias = Implication | Check


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
        members: The modules of each `Check`, by its index.
        touching: For each module, the indices of the rules that its presence can break, nesting left out.
        standing: The indices of the checks that the empty selection breaks.
        defaults: For each module (or ""), the unions directly under it that have a default.
        of_members: The rules of `rules` elements that name members of collections. They are no part of `rules`: the
            solver does not know members, which come and go.
    """

    order: Mapping[str, int] = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    members: Mapping[int, frozenset[str]] = field(repr=False)
    touching: Mapping[str, Sequence[int]] = field(repr=False)
    standing: tuple[int, ...] = field(repr=False)
    defaults: Mapping[str, Sequence[Default]] = field(repr=False)
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

    def broken(self, present: Set[str]) -> Iterator[Implication]:
        """Yield the rules that a complete set of modules ("" included) breaks, a `Check` as an implication of it."""
        touched = {number for module in present for number in self.touching.get(module, ())}
        found = (self.broken_rule(number, present) for number in sorted(touched.union(self.standing)))
        return (rule for rule in found if rule is not None)

    def broken_rule(self, number: int, present: Set[str]) -> Implication | None:
        """Return the rule with an index if a complete set of modules breaks it, as `broken` does."""
        rule = self.rules[number]
        if isinstance(rule, Check):
            return self._broken(rule, self.members[number], present)
        return rule if rule.then.isdisjoint(present) and all(module in present for module in rule.when) else None

    def broken_by_members(self, present: Set[str]) -> Iterator[Implication]:
        """Yield the broken rules over members, as `broken` does; `present` has modules, members and ""."""
        return filter(None, (self._broken(check, check.modules, present) for check in self.of_members))

    def _broken(self, check: Check, modules: frozenset[str], present: Set[str]) -> Implication | None:
        """Return an implication of a check over some modules that is broken if the check is."""
        used = modules & present
        if check.holds(present, len(used)):
            return None
        when, then = used, frozenset[str]()
        if not isinstance(check.test, Cardinality):
            when, then = broken_clause(check.test, present)
        elif len(used) < check.test.low:
            absent = (module for module in check.test.modules if module not in present)
            when, then = then, frozenset(islice(absent, len(modules) - check.test.low + 1))
        elif check.test.high is not None and len(used) > check.test.high + 1:
            when = frozenset([module for module in check.test.modules if module in used][: check.test.high + 1])
        ordered = tuple(sorted(when, key=lambda module: self.order.get(module, len(self.order)))) or ("",)
        return Implication(kind=check.kind, when=ordered, then=then, span=check.span, declared=check)


def index_rules(
    modules: tuple[str, ...], rules: tuple[Rule, ...], defaults: tuple[Default, ...], of_members: tuple[Check, ...]
) -> Rules:
    """Index rules over the given module paths, which are in document order.

    An implication is indexed by the last module of `when`: it can only be broken if that module is present.
    """
    members: dict[int, frozenset[str]] = {}
    touching: dict[str, list[int]] = {}
    standing: list[int] = []
    for number, rule in enumerate(rules):
        if isinstance(rule, Check):
            members[number] = rule.modules
            if not rule.holds(frozenset(), 0):
                standing.append(number)
        if rule.kind is not RuleKind.NESTING:
            for module in rule.when[-1:] if isinstance(rule, Implication) else members[number]:
                touching.setdefault(module, []).append(number)
    by_parent: dict[str, list[Default]] = {}
    for default in defaults:
        by_parent.setdefault(default.parent, []).append(default)
    return Rules(
        order={module: index for index, module in enumerate(("", *modules))},
        rules=rules,
        members=members,
        touching=touching,
        standing=tuple(standing),
        defaults=by_parent,
        of_members=of_members,
    )
