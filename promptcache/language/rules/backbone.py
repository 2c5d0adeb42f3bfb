"""Find the modules that the rules of a schema imply: always present, never present, or present with another module.

Unit propagation from the root finds the modules that are always or never present. The remaining modules form
components that share no rule. A module only implies modules of its own component. There are two cases:

- Unit propagation from the module may find a set that keeps all rules of the component. Then this set is the answer.
  Nearly all modules of real schemas are of this kind.
- Otherwise the solver searches the component.

A question that exceeds its budget stays open. The module then counts as implying nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeVar

from promptcache.language.rules.rules import Check, Exclusive, Implication, Rule, Rules
from promptcache.language.rules.solver import MAX_STEPS, Budget, RuleSolver, TooHardError, new_budget
from promptcache.language.syntax.conditions import Cardinality, simplify

_STEPS_OF_RULE = 50
_T = TypeVar("_T")


class Guarantees(Mapping[str, frozenset[str]]):
    """Modules that are guaranteed with each module; the modules that are always present are stored once."""

    def __init__(self, always: frozenset[str], more: Mapping[str, frozenset[str]]) -> None:
        self._always = always
        self._more = more

    def __getitem__(self, module: str) -> frozenset[str]:
        more = self._more[module]
        return self._always | more if more else self._always

    def __iter__(self) -> Iterator[str]:
        return iter(self._more)

    def __len__(self) -> int:
        return len(self._more)


class OpenQuestions(NamedTuple):
    """Modules whose implications exceed the budget ("" means every prompt), and the rules that make them hard."""

    modules: tuple[str, ...]
    rules: tuple[Rule, ...]


class Backbone(NamedTuple):
    """Result of the analysis: the modules that the rules imply or forbid.

    Attributes:
        guaranteed: For each module, the modules that are present with it; for "", those of every valid prompt.
        dead: The modules that no valid prompt has.
        together: For each requested set, the modules that are present with all of it; None if that is impossible.
        open: The open questions. A module in `open` counts as usable, and as present without any other.
    """

    guaranteed: Guarantees
    dead: frozenset[str]
    together: tuple[frozenset[str] | None, ...]
    open: OpenQuestions


class UndecidedError(Exception):
    """Error for rules whose satisfiability exceeds the budget; `rules` are the rules that make it hard."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        super().__init__(rules)
        self.rules = rules


def find_backbone(rules: Rules, sets: Sequence[Iterable[str]] = (), budget: Budget | None = None) -> Backbone | None:
    """Return the modules implied by each module and by each of `sets`, or None if no selection keeps the rules.

    Raises:
        UndecidedError: finding a selection takes more work than the budget allows.
    """
    with ExitStack() as stack:
        try:
            budget = budget or new_budget(MAX_STEPS)
            residual = _reduce(rules, budget)
            analysis = None if residual is None else _Analysis(rules, residual, budget, stack)
        except TooHardError:
            raise UndecidedError(rules.rules) from None
        return None if analysis is None else analysis.backbone(sets)


class _Residual(NamedTuple):
    """Rules over the undecided modules, by number; rules that always hold are left out."""

    always: frozenset[str]
    never: frozenset[str]
    rules: dict[int, Rule]


def _reduce(rules: Rules, budget: Budget) -> _Residual | None:
    """Remove the modules that unit propagation from the root decides; return None for a contradiction."""
    with RuleSolver(rules.order, budget) as solver:
        solver.add(rules.rules)
        settled = solver.propagate([""])
    if settled is None:
        return None
    always, never = frozenset(settled[0]) | {""}, frozenset(settled[1])
    left = ((number, residual_rule(rule, always, never)) for number, rule in enumerate(rules.rules))
    return _Residual(always, never, {number: rule for number, rule in left if rule is not None})


def residual_rule(rule: Rule, always: Set[str], never: Set[str]) -> Rule | None:
    """Return a rule without the modules that unit propagation decided, or None if it always holds."""
    if isinstance(rule, Implication):
        if not rule.then.isdisjoint(always) or not never.isdisjoint(rule.when):
            return None
        if always.isdisjoint(rule.when) and never.isdisjoint(rule.then):
            return rule
        return replace(rule, when=tuple(m for m in rule.when if m not in always), then=rule.then - never)
    if isinstance(rule, Exclusive):
        members = tuple(module for module in rule.members if module not in never and module not in always)
        return None if len(members) < 2 else replace(rule, members=members)
    if isinstance(rule.test, Cardinality):
        return _residual_count(rule, rule.test, always, never)
    test = simplify(rule.test, lambda module: True if module in always else False if module in never else None)
    assert test is not False  # unit propagation finds this contradiction before
    return None if isinstance(test, bool) else replace(rule, test=test)


def _residual_count(rule: Check, count: Cardinality, always: Set[str], never: Set[str]) -> Check | None:
    modules = tuple(module for module in count.modules if module not in always and module not in never)
    num_always = sum(module in always for module in count.modules)
    low, high = max(count.low - num_always, 0), None if count.high is None else count.high - num_always
    if low == 0 and (high is None or high >= len(modules)):
        return None
    return replace(rule, test=Cardinality(modules, low, high))


def modules_in(rule: Rule) -> Iterable[str]:
    if isinstance(rule, Implication):
        return (*rule.when, *rule.then)
    return rule.members if isinstance(rule, Exclusive) else rule.modules


def _stands(rule: Rule) -> bool:
    """Return whether the empty selection breaks a rule."""
    return not rule.when if isinstance(rule, Implication) else isinstance(rule, Check) and not rule.holds(set(), 0)


class _Analysis:
    """Components of the residual rules, and the searches in them."""

    def __init__(self, rules: Rules, residual: _Residual, budget: Budget, stack: ExitStack) -> None:
        self._order = rules.order
        self._originals = rules.rules
        self._residual = residual
        self._budget = budget
        self._stack = stack
        left = [module for module in rules.order if module not in residual.always and module not in residual.never]
        self._component = components(left, map(modules_in, residual.rules.values()))
        self._members = _grouped((component, module) for module, component in self._component.items())
        of_component = {
            number: self._component[next(iter(modules_in(rule)))] for number, rule in residual.rules.items()
        }
        self._rules_of = _grouped((component, number) for number, component in of_component.items())
        self._standing = _grouped(
            (component, number) for number, component in of_component.items() if _stands(residual.rules[number])
        )
        self._choices = _grouped(
            (module, number)
            for number, rule in residual.rules.items()
            if _leaves_choice(rule)
            for module in (rule.when if isinstance(rule, Implication) else modules_in(rule))
        )
        self._always = residual.always
        self._searches: dict[str, RuleSolver] = {}
        self._closure = stack.enter_context(RuleSolver(left, budget))
        self._closure.add(rule for rule in residual.rules.values() if not _is_counted(rule))

    def backbone(self, sets: Sequence[Iterable[str]]) -> Backbone | None:
        """Return the implied modules, or None if no selection keeps the rules."""
        opened: dict[str, None] = {}
        for component in self._standing:
            try:
                found = self._alternatives(component)
            except TooHardError:
                opened[""] = None
                continue
            if found is None:
                return None
            self._always |= found
        more, dead = self._each(opened)
        guaranteed = Guarantees(self._always - {""}, more)
        together = tuple(self._together(frozenset(modules), guaranteed) for modules in sets)
        return Backbone(guaranteed, dead, together, OpenQuestions(tuple(opened), self._hard_rules(opened)))

    def _alternatives(self, component: str) -> frozenset[str] | None:
        """Return the modules always present in a component with alternatives, or None if its rules contradict.

        Raises:
            UndecidedError: finding a selection takes more work than the budget allows.
            TooHardError: there is a selection, but the modules of every selection exceed the budget.
        """
        search = self._whole(component)
        search.budget = self._budget.share(2)
        try:
            if search.selection() is None:
                return None
        except TooHardError:
            raise UndecidedError(self._hard_rules(self._members[component])) from None
        search.budget = self._budget.share(4)
        return search.implied(())

    def _each(self, opened: dict[str, None]) -> tuple[dict[str, frozenset[str]], frozenset[str]]:
        """Return the modules that each module implies besides those always present, and the dead modules."""
        more = {module: frozenset((module,)) - self._always for module in self._order}
        dead = set(self._residual.never)
        self._closure.budget = self._budget.share(2)
        for module in (module for module in self._component if module not in self._always):
            try:
                found = self._implied(frozenset((module,)))
            except TooHardError:
                opened[module] = None
                continue
            if found is None:
                dead.add(module)
            else:
                more[module] = found - self._always
        return more, frozenset(dead)

    def _together(self, modules: frozenset[str], guaranteed: Guarantees) -> frozenset[str] | None:
        """Return the modules that are present with several modules, or None if these exclude each other."""
        if not modules.isdisjoint(self._residual.never):
            return None
        by_component: dict[str, set[str]] = {}
        for module in modules - self._residual.always:
            by_component.setdefault(self._component[module], set()).add(module)
        result = self._always
        for start in map(frozenset, by_component.values()):
            try:
                self._closure.budget = self._budget.share(4)
                found = self._implied(start)
            except TooHardError:
                found = start.union(*(guaranteed[module] for module in start))
            if found is None:
                return None
            result |= found
        return result - {""}

    def _implied(self, start: frozenset[str]) -> frozenset[str] | None:
        """Return all modules that `start` implies, or None if `start` cannot be present together.

        All modules of `start` are in one component.
        """
        found = self._propagated(start)
        if found is not None:
            return found
        search = self._whole(self._component[next(iter(start))])
        search.budget = self._budget.share(4)
        return search.implied(start)

    def _propagated(self, start: frozenset[str]) -> frozenset[str] | None:
        """Return all modules that `start` implies if unit propagation alone can find them, else None."""
        settled = self._closure.propagate(start)
        if settled is None:
            return None
        reached = start.union(settled[0])
        touched = Counter(number for module in reached for number in self._choices.get(module, ()))
        standing = self._standing.get(self._component[next(iter(start))], ())
        self._closure.budget.spend(_STEPS_OF_RULE * len(touched) + len(standing))
        rules = self._residual.rules
        kept = all(_keeps(reached, rules[number], touched[number]) for number in chain(standing, touched))
        return reached if kept else None

    def _whole(self, component: str) -> RuleSolver:
        if component not in self._searches:
            search = self._stack.enter_context(RuleSolver(self._members[component], self._budget))
            search.add(self._residual.rules[number] for number in self._rules_of[component])
            self._searches[component] = search
        return self._searches[component]

    def _hard_rules(self, modules: Iterable[str]) -> tuple[Rule, ...]:
        """Return the rules of the components of `modules`; if some of these rules leave a choice, only those."""
        components = {self._component[module] for module in modules if module} or self._standing.keys()
        numbers = sorted(number for component in components for number in self._rules_of.get(component, ()))
        choices = [number for number in numbers if _leaves_choice(self._residual.rules[number])]
        return tuple(self._originals[number] for number in choices or numbers)


def _grouped(pairs: Iterable[tuple[str, _T]]) -> dict[str, list[_T]]:
    """Return the second item of each pair, by its first item."""
    found: dict[str, list[_T]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found


def _is_counted(rule: Rule) -> bool:
    """Return whether a rule counts modules. Such a rule mostly propagates absences, and many of them."""
    return isinstance(rule, Exclusive) or (isinstance(rule, Check) and isinstance(rule.test, Cardinality))


def _leaves_choice(rule: Rule) -> bool:
    return not isinstance(rule, Implication) or len(rule.then) > 1


def _keeps(present: frozenset[str], rule: Rule, num_touched: int) -> bool:
    """Return whether a selection keeps a rule; `num_touched` modules of the rule are present."""
    if isinstance(rule, Implication):
        return not rule.then.isdisjoint(present) or not present.issuperset(rule.when)
    return num_touched <= 1 if isinstance(rule, Exclusive) else rule.holds(present, num_touched)


def components(modules: Iterable[str], links: Iterable[Iterable[str]]) -> dict[str, str]:
    """Return the representative of each module's component; linked modules share one representative."""
    parent = {module: module for module in modules}

    def root(module: str) -> str:
        while parent[module] != module:
            parent[module] = parent[parent[module]]
            module = parent[module]
        return module

    for first, *others in links:
        for other in others:
            parent[root(other)] = root(first)
    return {module: root(module) for module in parent}
