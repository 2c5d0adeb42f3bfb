"""What the rules of a schema imply: which modules are always there, never there, or there whenever another one is.

Comes in: rules. Goes out: a `Backbone`. This file explains nothing.

How. Unit propagation from the root settles what is always and never there. What is left falls into components that
share no rule. Whatever a module implies lies in its own component, so each question is answered there:

- Follow the implications from the module. If no alternative is left open, what was reached is a model in which nothing
  could be taken away, hence exactly what is implied. Nearly all modules of real schemas end here, without a solver.
- Otherwise ask the solver about the cone, which is everything that the module could ever bring about; all else can stay
  absent. What lies in every model found so far, but is not known to be implied, is doubted one by one: each doubt is
  either confirmed or answered by a new model, which clears up others too.
- A component that has alternatives of its own, open whatever is named, is asked as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import NamedTuple

from pysat.solvers import Solver

from promptcache.language.rules.components import Residual, reduce
from promptcache.language.rules.formula import Budget, Clause, at_most_one, formula_of, literals, solving
from promptcache.language.rules.rules import Implication, Rules

MAX_STEPS = 20_000_000
"""What the answers about the rules of one schema may cost, in steps of `Budget`."""


_STEPS_OF_MEMBER = 60


class Guarantees(Mapping[str, frozenset[str]]):
    """The modules guaranteed with each module; what is always there is stored once and joined to the rest on access."""

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


class Backbone(NamedTuple):
    """What the rules imply.

    Attributes:
        guaranteed: For each module, and "" for every valid prompt, the modules that are present with it.
        dead: The modules that no valid prompt has.
        together: For each set of modules asked about, what is present when all of them are; None if they never are.
    """

    guaranteed: Guarantees
    dead: frozenset[str]
    together: tuple[frozenset[str] | None, ...]


def find_backbone(rules: Rules, sets: Sequence[Iterable[str]] = ()) -> Backbone | None:
    """Return what the rules imply, for each module and for each of `sets`; None if no selection keeps them.

    Raises:
        TooHardError: it takes more than `MAX_STEPS`.
    """
    names = list(rules.order)
    number = {module: index + 1 for index, module in enumerate(names)}
    with ExitStack() as stack:
        analysis = _Analysis.of(rules, stack)
        if analysis is None:
            return None
        more: dict[int, frozenset[int] | None] = {}
        for variable in range(2, len(names) + 1):
            more[variable] = analysis.implied([variable])
        together = [analysis.implied([number[module] for module in modules]) for modules in sets]
    always = _names(analysis.always, names)
    extra = {
        names[index - 1]: None if found is None else _names(found, names) - always for index, found in more.items()
    }
    dead = frozenset(module for module, found in extra.items() if found is None)
    alive = {"": frozenset[str](), **{module: found for module, found in extra.items() if found is not None}}
    return Backbone(
        guaranteed=Guarantees(always, _filled(rules, alive, dead) if dead else alive),
        dead=dead,
        together=tuple(None if found is None else always | _names(found, names) for found in together),
    )


def _names(variables: Iterable[int], names: list[str]) -> frozenset[str]:
    return frozenset(names[variable - 1] for variable in variables if variable > 1)


def _filled(rules: Rules, alive: Mapping[str, frozenset[str]], dead: frozenset[str]) -> dict[str, frozenset[str]]:
    """Add the modules that can never be used, each with what it would bring along: any closed set would do."""
    forced: dict[str, list[str]] = {}
    for rule in rules.rules:
        if isinstance(rule, Implication) and len(rule.when) == len(rule.then) == 1 and rule.when[0] in dead:
            forced.setdefault(rule.when[0], []).extend(rule.then)
    filled = dict(alive)
    for module in dead:
        found: set[str] = set()
        waiting = [module]
        while waiting:
            reached = waiting.pop()
            if reached in dead and reached not in found:
                found.add(reached)
                waiting.extend(forced[reached])
            elif reached in alive and reached:
                found |= alive[reached] | {reached}
        filled[module] = frozenset(found)
    return {module: filled[module] for module in rules.order}


class _Analysis:
    """Answers what follows from assumed variables."""

    def __init__(self, residual: Residual, stack: ExitStack) -> None:
        self.residual = residual
        self.budget = Budget(MAX_STEPS)
        self.always = residual.always
        self._stack = stack
        self._searches: dict[int, _Search] = {}

    @classmethod
    def of(cls, rules: Rules, stack: ExitStack) -> _Analysis | None:
        residual = reduce(formula_of(rules))
        if residual is None:
            return None
        analysis = cls(residual, stack)
        for component in residual.open_clauses:
            implied = analysis._whole(component).implied(frozenset())
            if implied is None:
                return None
            analysis.always |= implied
        return analysis

    def implied(self, variables: Iterable[int]) -> frozenset[int] | None:
        """Return what is present when `variables` are (what always is may be left out); None if they cannot be."""
        by_component: dict[int, set[int]] = {}
        for variable in variables:
            if variable in self.residual.never:
                return None
            if variable not in self.residual.always:
                by_component.setdefault(self.residual.component[variable], set()).add(variable)
        result: frozenset[int] = frozenset()
        for component, start in by_component.items():
            found = self._in_component(component, frozenset(start))
            if found is None:
                return None
            result |= found
        return result

    def _in_component(self, component: int, start: frozenset[int]) -> frozenset[int] | None:
        reached, settled = self.residual.follow(start, self.budget)
        if reached is None:
            return None
        open_clauses = self.residual.open_clauses.get(component, ())
        if not open_clauses:
            if settled:
                return reached
            cone = self.residual.cone(start, self.budget)
            if 2 * len(cone) > len(self.residual.members[component]):
                return self._whole(component).implied(reached)
            with ExitStack() as stack:
                return _Search(self.residual, cone, stack, self.budget).implied(reached)
        if settled and len(self.residual.answered(reached)) == len(open_clauses):
            return reached
        return self._whole(component).implied(reached)

    def _whole(self, component: int) -> _Search:
        if component not in self._searches:
            members = self.residual.members[component]
            self._searches[component] = _Search(self.residual, members, self._stack, self.budget)
        return self._searches[component]


class _Search:
    """Solvers on the clauses that bind some variables.

    Two solvers have opposite tastes: one likes variables to be false, the other likes what the first one did not
    choose. What both choose is likely implied.
    """

    def __init__(self, residual: Residual, variables: Sequence[int], stack: ExitStack, budget: Budget) -> None:
        self._variables = variables
        self._number = {variable: index + 1 for index, variable in enumerate(variables)}
        self._residual = residual
        self._stack = stack
        self._budget = budget
        self._few = self._solver([-number for number in self._number.values()])
        self._other: Solver | None = None

    def _solver(self, taste: list[int]) -> Solver:
        self._budget.spend(_STEPS_OF_MEMBER * len(self._variables))
        solver = self._stack.enter_context(solving(self._clauses()))
        solver.set_phases(taste)
        return solver

    def _clauses(self) -> Iterator[list[int]]:
        number = self._number
        for clause in self._residual.clauses_over(number):
            when = tuple(number[variable] for variable in clause.when)
            yield literals(Clause(when, frozenset(number[variable] for variable in clause.then)))
        fresh = count(len(number) + 1)
        for group in self._residual.groups_over(number):
            yield from at_most_one([number[variable] for variable in group], fresh)

    def implied(self, reached: frozenset[int]) -> frozenset[int] | None:
        """Return what holds in every model that has `reached`; None if there is none."""
        known = {self._number[variable] for variable in reached}
        possible = self._model(self._few, known)
        if possible is None:
            return None
        if possible != known:
            if self._other is None:
                taste = [-number if number in possible else number for number in self._number.values()]
                self._other = self._solver(taste)
            possible &= self._model(self._other, known) or set()
        while doubted := possible - known:
            doubt = min(doubted)
            model = self._model(self._few, {*known, -doubt})
            if model is None:
                known.add(doubt)
            else:
                possible &= model
        return frozenset(self._variables[number - 1] for number in known)

    def _model(self, solver: Solver, assumed: set[int]) -> set[int] | None:
        if not self._budget.solve(solver, [*assumed]):
            return None
        self._budget.spend(len(self._variables))
        model = solver.get_model() or []
        return {number for number in model[: len(self._variables)] if number > 0}
