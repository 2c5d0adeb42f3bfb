"""How many valid combinations of modules a schema has.

Comes in: rules. Goes out: their number. This file asks a solver only where counting would take too long.

How. Without rules between distant modules, combinations multiply: a module that can be left out doubles what its
content allows, a union adds up its members. So every part of the schema that no such rule reaches into is counted in
one pass and becomes a weight. What remains is a weighted count of models: settle one module, take the weighted sum of
both outcomes, and multiply whatever falls apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from math import prod
from typing import NamedTuple

from promptcache.language.rules.formula import at_most_one, formula_of, literals, solving
from promptcache.language.rules.rules import Exclusive, Implication, RuleKind, Rules

_TREE_RULES = frozenset({RuleKind.NESTING, RuleKind.REQUIRED, RuleKind.CHOICE})
_MAX_STEPS = 200_000
_MAX_DEPTH = 150
_MAX_LISTED = 1_000


class Count(NamedTuple):
    """A number of combinations; where it is not `exact`, there are at least that many."""

    number: int
    exact: bool


def count_combinations(rules: Rules, cap: int = 1_000_000) -> Count:
    """Count the sets of modules that keep all rules, up to `cap`; the defaults of unions are choices like others."""
    problem = _fold(rules)
    try:
        number = _Counter(problem.weights).models({1}, set(problem.weights), problem.clauses, problem.groups, 0)
    except _TooHardError:
        return Count(min(_enumerate(rules), cap), exact=False)
    return Count(min(number, cap), exact=number <= cap)


class _Problem(NamedTuple):
    """Clauses as literals, groups of which at most one variable holds, and what each variable that holds multiplies."""

    weights: dict[int, int]
    clauses: list[tuple[int, ...]]
    groups: list[tuple[int, ...]]


def _fold(rules: Rules) -> _Problem:
    """Number the modules that rules reach, from the root, 1, and fold all others into weights."""
    reached = _reached(rules)
    implications = [rule for rule in rules.rules if isinstance(rule, Implication)]
    required = {module for rule in implications if rule.kind is RuleKind.REQUIRED for module in rule.then}
    choices = {min(rule.then) for rule in implications if rule.kind is RuleKind.CHOICE}
    weights = dict.fromkeys(rules.order, 1)
    unions = [rule for rule in rules.rules if isinstance(rule, Exclusive)]
    first = {member: min(union.members) for union in unions for member in union.members[:1]}
    sums = dict.fromkeys(first.values(), 0)
    of_parent: dict[str, list[Exclusive]] = {}
    for union in unions:
        of_parent.setdefault(union.parent, []).append(union)
    for module in reversed(list(rules.order)):
        for union in of_parent.get(module, ()):
            key = first[union.members[0]]
            if reached.isdisjoint(union.members):
                weights[module] *= sums[key] + (key not in choices)
        if module in reached:
            continue
        if module in rules.union_of:
            sums[first[rules.union_of[module].members[0]]] += weights[module]
        else:
            parent = module.rpartition("/")[0]
            weights[parent] *= weights[module] + (module not in required)
    return _skeleton(rules, reached, weights, sums)


def _reached(rules: Rules) -> set[str]:
    """Return the modules that rules beyond the tree speak of, and all around them; "" is one of them."""
    reached = {""}
    for rule in rules.rules:
        if isinstance(rule, Exclusive) or rule.kind is RuleKind.NESTING:
            continue
        inside_union = rule.kind is RuleKind.REQUIRED and any(module in rules.union_of for module in rule.then)
        if rule.kind not in _TREE_RULES or inside_union:
            for module in (*rule.when, *rule.then):
                while module not in reached:
                    reached.add(module)
                    module = module.rpartition("/")[0]
    return reached


def _skeleton(rules: Rules, reached: set[str], weights: dict[str, int], sums: dict[str, int]) -> _Problem:
    number = {module: index + 1 for index, module in enumerate(module for module in rules.order if module in reached)}
    problem = _Problem({number[module]: weights[module] for module in number}, [], [])
    fresh = count(len(number) + 1)
    others: dict[str, int] = {}
    for union in (rule for rule in rules.rules if isinstance(rule, Exclusive)):
        members = [number[member] for member in union.members if member in number]
        if not members:
            continue
        if folded := sums[min(union.members)]:
            other = others[min(union.members)] = next(fresh)
            problem.weights[other] = folded
            problem.clauses.append((-other, number[union.parent]))
            members.append(other)
        problem.groups.append(tuple(members))
    for rule in rules.rules:
        if isinstance(rule, Implication) and number.keys() >= set(rule.when):
            then = [number[module] for module in rule.then if module in number]
            if rule.kind is RuleKind.CHOICE and min(rule.then) in others:
                then.append(others[min(rule.then)])
            if then or not rule.then:
                problem.clauses.append((*(-number[module] for module in rule.when), *then))
    return problem


class _TooHardError(Exception):
    """Counting exactly would take too long."""


class _Counter:
    """A weighted model count that gives up after a number of steps."""

    def __init__(self, weights: dict[int, int]) -> None:
        self._weights = weights
        self._steps = 0

    def models(
        self,
        units: set[int],
        variables: set[int],
        clauses: Sequence[tuple[int, ...]],
        groups: Sequence[tuple[int, ...]],
        depth: int,
    ) -> int:
        """Count the models over `variables` that have the literals `units`."""
        if depth > _MAX_DEPTH:
            raise _TooHardError
        settled = self._propagate(set(units), clauses, groups)
        if settled is None:
            return 0
        left = variables - {abs(literal) for literal in settled}
        clauses = [
            tuple(literal for literal in clause if -literal not in settled)
            for clause in clauses
            if settled.isdisjoint(clause)
        ]
        groups = [tuple(v for v in group if v in left) for group in groups if settled.isdisjoint(group)]
        number = prod(self._weights[literal] for literal in settled if literal > 0)
        for part in _parts(left, clauses, groups):
            number *= self._branch(*part, depth)
        return number

    def _branch(
        self, variables: set[int], clauses: list[tuple[int, ...]], groups: list[tuple[int, ...]], depth: int
    ) -> int:
        if not clauses and len(groups) <= 1:
            return 1 + sum(self._weights[variable] for variable in variables)
        uses = dict.fromkeys(sorted(variables), 0)
        for clause in clauses:
            for literal in clause:
                uses[abs(literal)] += 1
        chosen = max(uses, key=lambda variable: uses[variable])
        return sum(self.models({literal}, variables, clauses, groups, depth + 1) for literal in (chosen, -chosen))

    def _propagate(
        self, settled: set[int], clauses: Sequence[tuple[int, ...]], groups: Sequence[tuple[int, ...]]
    ) -> set[int] | None:
        """Add to `settled` what follows clause by clause; None if two of them contradict each other."""
        before = -1
        while len(settled) != before:
            before = len(settled)
            self._steps += len(clauses) + len(groups)
            if self._steps > _MAX_STEPS:
                raise _TooHardError
            for clause in clauses:
                if settled.isdisjoint(clause):
                    left = [literal for literal in clause if -literal not in settled]
                    if not left:
                        return None
                    if len(left) == 1:
                        settled.add(left[0])
            for group in groups:
                present = [variable for variable in group if variable in settled]
                if len(present) > 1:
                    return None
                if present:
                    settled.update(-variable for variable in group if variable != present[0])
        return None if any(-literal in settled for literal in settled) else settled


def _parts(
    variables: set[int], clauses: Iterable[tuple[int, ...]], groups: Iterable[tuple[int, ...]]
) -> list[tuple[set[int], list[tuple[int, ...]], list[tuple[int, ...]]]]:
    """Cut a problem into parts that share no variable."""
    parent = {variable: variable for variable in variables}

    def root(variable: int) -> int:
        while parent[variable] != variable:
            parent[variable] = parent[parent[variable]]
            variable = parent[variable]
        return variable

    clauses, groups = list(clauses), [group for group in groups if len(group) > 1]
    for first, *others in (*clauses, *groups):
        for other in others:
            parent[root(abs(other))] = root(abs(first))
    parts: dict[int, tuple[set[int], list[tuple[int, ...]], list[tuple[int, ...]]]] = {}
    for variable in variables:
        parts.setdefault(root(variable), (set(), [], []))[0].add(variable)
    for clause in clauses:
        parts[root(abs(clause[0]))][1].append(clause)
    for group in groups:
        parts[root(group[0])][2].append(group)
    return list(parts.values())


def _enumerate(rules: Rules) -> int:
    """Count models one by one, up to a thousand, fewer where each is large."""
    formula = formula_of(rules)
    fresh = count(formula.num_variables + 1)
    clauses = [[1], *(literals(clause) for clause in formula.clauses)]
    for group in formula.groups:
        clauses += at_most_one(group, fresh)
    found, enough = 0, min(_MAX_LISTED, _MAX_STEPS // formula.num_variables + 1)
    with solving(clauses) as solver:
        while found < enough and solver.solve():
            model = solver.get_model() or []
            solver.add_clause([-literal for literal in model[: formula.num_variables]])
            found += 1
    return found
