"""Count the valid selections of a schema, and list them if there are few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from promptcache.language.rules.backbone import components, modules_in, residual_rule
from promptcache.language.rules.rules import Exclusive, Implication, Rule, Rules
from promptcache.language.rules.solver import MAX_STEPS, Budget, RuleSolver, TooHardError, new_budget
from promptcache.language.syntax.conditions import And, Cardinality, Not, Or, Present, Test

_MAX_STEPS = MAX_STEPS // 3
_STEPS_OF_RULE = 100
_MAX_DEPTH = 100
_MAX_COUNTED = 1_000
_MAX_LISTED = 4_096

_Numbered: TypeAlias = Mapping[int, Rule]


class Count(NamedTuple):
    """Number of combinations; if it is not `exact`, a lower bound."""

    number: int
    exact: bool


@contextmanager
def open_solver(rules: Rules, budget: Budget | None = None) -> Iterator[RuleSolver]:
    """Open a solver for the valid selections of a schema, which are sets of modules without the root.

    Args:
        rules: The rules of the schema.
        budget: The default is the budget of twenty schema checks.

    Raises:
        TooHardError: the questions together take more work than the budget allows.
    """
    with RuleSolver(rules.order, budget or new_budget(20 * MAX_STEPS)) as solver:
        solver.add(rules.rules)
        solver.demand("")
        yield solver


def count_combinations(rules: Rules, cap: int = 1_000_000) -> Count:
    """Count the sets of modules that keep all rules, up to `cap`; a union default counts as one choice among others.

    Parts that share no rule are counted separately, and their counts are multiplied. If a part exceeds the budget,
    at most a thousand of its sets are counted.
    """
    try:
        with RuleSolver(rules.order, new_budget(_MAX_STEPS)) as solver:
            solver.add(rules.rules)
            found = _Counter(solver).all(rules)
    except TooHardError:
        found = Count(1, exact=False)
    return Count(min(found.number, cap), exact=found.exact and found.number <= cap)


class _Counter:
    """Counter that decides one module after another and counts independent parts separately."""

    def __init__(self, solver: RuleSolver) -> None:
        self._solver = solver

    def all(self, rules: Rules) -> Count:
        numbered = dict(enumerate(rules.rules))
        number, exact = 1, True
        whole = self._solver.budget
        parts = self._parts((), (), list(rules.order)[1:], numbered)
        if parts is None:
            return Count(0, exact=True)
        for modules, part in parts:
            self._solver.budget = whole.share(2)
            try:
                number *= self._branch((), (), modules, part, 0)
            except TooHardError:
                self._solver.budget = whole.share(2)
                number, exact = number * _listed(modules, part.values(), self._solver.budget), False
        return Count(number, exact)

    def _models(
        self, present: tuple[str, ...], absent: tuple[str, ...], modules: list[str], rules: _Numbered, depth: int
    ) -> int:
        if depth > _MAX_DEPTH:
            raise TooHardError
        parts = self._parts(present, absent, modules, rules)
        if parts is None:
            return 0
        number = 1
        for inner, part in parts:
            number *= self._branch(present, absent, inner, part, depth)
        return number

    def _branch(
        self, present: tuple[str, ...], absent: tuple[str, ...], modules: list[str], rules: _Numbered, depth: int
    ) -> int:
        """Count a connected part: branch on the module in most rules, or on the members of its union."""
        if not rules:
            return 1 << len(modules)
        if len(rules) == 1 and isinstance(next(iter(rules.values())), Exclusive):
            return 1 + len(modules)
        uses = dict.fromkeys(modules, 0)
        union: dict[str, Exclusive] = {}
        for rule in rules.values():
            for module in modules_in(rule):
                uses[module] += 1
            if isinstance(rule, Exclusive):
                union.update(dict.fromkeys(rule.members, rule))
        chosen = max(uses, key=uses.__getitem__)
        group = union[chosen].members if chosen in union else (chosen,)
        number = self._models(present, (*absent, *group), modules, rules, depth + 1)
        for member in group:
            number += self._models((*present, member), absent, modules, rules, depth + 1)
        return number

    def _parts(
        self, present: tuple[str, ...], absent: tuple[str, ...], modules: list[str], rules: _Numbered
    ) -> list[tuple[list[str], _Numbered]] | None:
        """Return the undecided modules and rules as parts that share no rule, or None if the rules contradict."""
        self._solver.budget.spend(_STEPS_OF_RULE * (len(rules) + len(modules)))
        settled = self._solver.propagate(("", *present), absent)
        if settled is None:
            return None
        true, false = {"", *present, *settled[0]}, {*absent, *settled[1]}
        left = {number: rule for number, old in rules.items() if (rule := residual_rule(old, true, false)) is not None}
        component = components(
            (module for module in modules if module not in true and module not in false),
            map(modules_in, left.values()),
        )
        parts: dict[str, tuple[list[str], dict[int, Rule]]] = {}
        for module, root in component.items():
            parts.setdefault(root, ([], {}))[0].append(module)
        for number, rule in left.items():
            parts[component[next(iter(modules_in(rule)))]][1][number] = rule
        return list(parts.values())


def _listed(modules: Iterable[str], rules: Iterable[Rule], budget: Budget) -> int:
    """Count selections by listing them: at least one, at most a thousand."""
    found = 0
    try:
        with RuleSolver(modules, budget) as solver:
            solver.add(rules)
            while found < _MAX_COUNTED and (selection := solver.selection()) is not None:
                found += 1
                solver.exclude(selection)
    except TooHardError:
        pass
    return max(found, 1)


def list_selections(rules: Rules, limit: int = _MAX_LISTED) -> tuple[frozenset[str], ...] | None:
    """Return every valid selection, the smallest first, or None if there are more than `limit`."""
    order = rules.order
    judged: list[list[Callable[[int], bool]]] = [[] for _ in order]
    for rule in rules.rules:
        judged[max(order[module] for module in modules_in(rule))].append(_judge(rule, order))
    masks = [1]
    for place in range(1, len(order)):
        judges = judged[place]
        masks = [
            mask
            for without in masks
            for mask in (without, without | 1 << place)
            if all(judge(mask) for judge in judges)
        ]
        if len(masks) > 4 * limit:  # later rules may remove some of the masks
            return None
    masks = [mask for mask in masks if all(judge(mask) for judge in judged[0])]
    if len(masks) > limit:
        return None
    masks.sort(key=lambda mask: (mask.bit_count(), mask))
    paths = [(1 << place, path) for path, place in order.items() if path]
    return tuple(frozenset(path for bit, path in paths if mask & bit) for mask in masks)


def _judge(rule: Rule, order: Mapping[str, int]) -> Callable[[int], bool]:
    """Return a function that tests a rule on a selection, which is a bit mask in document order."""
    if isinstance(rule, Implication):
        when, then = _mask(rule.when, order), _mask(rule.then, order)
        return lambda mask: mask & when != when or bool(mask & then)
    if isinstance(rule, Exclusive):
        members = _mask(rule.members, order)
        return lambda mask: (mask & members).bit_count() <= 1
    if isinstance(rule.test, Cardinality):
        low, high = rule.test.low, len(order) if rule.test.high is None else rule.test.high
        counted = _mask(rule.test.modules, order)
        return lambda mask: low <= (mask & counted).bit_count() <= high
    return _judge_test(rule.test, order)


def _judge_test(test: Test, order: Mapping[str, int]) -> Callable[[int], bool]:
    match test:
        case Present(module):
            bit = 1 << order[module]
            return lambda mask: bool(mask & bit)
        case Not(inner):
            judge = _judge_test(inner, order)
            return lambda mask: not judge(mask)
        case And(tests) | Or(tests):
            judges = [_judge_test(part, order) for part in tests]
            join = all if isinstance(test, And) else any
            return lambda mask: join(judge(mask) for judge in judges)


def _mask(modules: Iterable[str], order: Mapping[str, int]) -> int:
    return sum({1 << order[module] for module in modules})
