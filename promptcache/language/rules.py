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


class RuleKind(StrEnum):
    """Where a rule comes from."""

    NESTING = "nesting"
    UNION = "union"
    CHOICE = "choice"
    REQUIRED = "required"
    REQUIRES = "requires"
    EXCLUDES = "excludes"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Implication:
    """Whenever all of `when` are present, at least one of `then` is; with an empty `then`, they never all are."""

    kind: RuleKind
    when: tuple[str, ...]
    then: frozenset[str]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusive:
    """At most one of the members is present; no module is a member of two."""

    kind: RuleKind
    parent: str
    members: tuple[str, ...]
    span: Span


Rule: TypeAlias = Implication | Exclusive


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
        rules: In document order.
        triggers: For each module, the implications that its presence can break.
        union_of: For each member of a union, the rule that says "at most one".
        defaults: For each module (or ""), the unions directly under it that have a default.
    """

    order: Mapping[str, int] = field(repr=False)
    rules: tuple[Rule, ...] = field(repr=False)
    triggers: Mapping[str, tuple[Implication, ...]] = field(repr=False)
    union_of: Mapping[str, Exclusive] = field(repr=False)
    defaults: Mapping[str, tuple[Default, ...]] = field(repr=False)

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
                if rule.then.isdisjoint(present) and all(other in present for other in rule.when):
                    yield rule
            union = self.union_of.get(module)
            if union is not None:
                members[union.members[0]] = members.get(union.members[0], 0) + 1
                if members[union.members[0]] == 2:
                    yield union


def index_rules(modules: tuple[str, ...], rules: tuple[Rule, ...], defaults: tuple[Default, ...]) -> Rules:
    """Index rules over the given module paths, which stand in document order.

    A rule is looked up under the last of its `when`: it can only be broken when that one is present.
    """
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
        rules=rules,
        triggers={module: tuple(found) for module, found in triggers.items()},
        union_of=union_of,
        defaults={parent: tuple(found) for parent, found in by_parent.items()},
    )
