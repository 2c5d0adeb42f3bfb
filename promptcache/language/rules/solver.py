"""SAT solver for all questions about rules, with a budget for its work.

A `RuleSolver` owns the clauses of some rules over some modules. A `Budget` counts and limits its work in steps, so
that the result is the same on every machine. Only this module imports python-sat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import combinations
from math import isqrt
from types import TracebackType

from pysat.card import CardEnc, EncType
from pysat.examples.hitman import Hitman
from pysat.formula import CNFPlus
from pysat.solvers import Solver

from promptcache.diagnostics import PromptCacheError
from promptcache.language.rules.rules import Exclusive, Implication, Rule
from promptcache.language.syntax.conditions import And, Cardinality, Not, Or, Present, Test
from promptcache.locks import new_rlock

MAX_STEPS = 100_000_000
"""Budget for the check of one schema, in steps of `Budget`: a few seconds."""

_LOCK = new_rlock()  # python-sat keeps jump buffers and signal handlers per process: one thread at a time

_STEPS_OF_PROPAGATION = 5
_STEPS_OF_CONFLICT = 500
_STEPS_OF_VARIABLE = 50
_PAIRWISE = 5
_SMALL_COUNTER = 20_000
_MAX_ROUNDS = 50
_MAX_SOFT = 100


class TooHardError(PromptCacheError):
    """Error for a question about rules that takes more work than its budget allows."""

    def __init__(self) -> None:
        super().__init__("the rules are too hard to solve: the search takes too many steps")


class Budget:
    """Limit on the work of a solver, in steps.

    A step takes about as long as reading one variable. A propagation or conflict of the solver counts as several
    steps. The budget does not depend on a clock.
    """

    def __init__(self, steps: int, *, whole: Budget | None = None) -> None:
        self.size = self.left = steps
        self._whole = whole

    def share(self, divisor: int) -> Budget:
        """Return a budget with one part of the remaining steps; its steps are also taken from this budget."""
        return Budget(self.left // divisor, whole=self)

    def spend(self, steps: int) -> None:
        """Take steps from the budget.

        Raises:
            TooHardError: fewer steps are left.
        """
        budget: Budget | None = self
        while budget is not None:
            budget.left -= steps
            budget = budget._whole
        if self.left < 0:
            raise TooHardError


_SHARED: ContextVar[Budget | None] = ContextVar("shared budget of rules", default=None)


@contextmanager
def limited_solver(max_steps: int) -> Iterator[None]:
    """Limit the steps of all questions about rules in the `with` block together. A server does this for its callers.

    The solver holds the interpreter's lock, so other threads of the process wait for a hard question.
    """
    token = _SHARED.set(Budget(max_steps))
    try:
        yield
    finally:
        _SHARED.reset(token)


def max_steps() -> int:
    """Return the largest number of steps that a question may take here."""
    shared = _SHARED.get()
    return MAX_STEPS if shared is None else min(MAX_STEPS, shared.size)


def new_budget(steps: int) -> Budget:
    """Return a budget for a question, at most what `limited_solver` has left."""
    shared = _SHARED.get()
    return Budget(steps) if shared is None else Budget(max(0, min(steps, shared.left)), whole=shared)


class RuleSolver:
    """Clauses over modules, and the questions that a solver answers about them.

    Use it in a `with` statement; other threads wait until the statement ends. A question that exceeds the budget
    raises `TooHardError`. Modules that were not given to the solver count as absent.
    """

    def __init__(self, modules: Iterable[str], budget: Budget) -> None:
        self.modules = tuple(modules)
        self.budget = budget
        self._number = {module: index + 1 for index, module in enumerate(self.modules)}
        self._top = len(self.modules)
        self._solver: Solver

    def __enter__(self) -> RuleSolver:
        _LOCK.acquire()
        self._solver = Solver(name="glucose4")
        self._solver.set_phases([-number for number in self._number.values()])  # prefer few modules
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._solver.delete()
        _LOCK.release()

    def add(self, rules: Iterable[Rule]) -> None:
        """Add clauses for rules."""
        clauses = [clause for rule in rules for clause in self._clauses(rule)]
        self.budget.spend(_STEPS_OF_VARIABLE * len(clauses))
        self._solver.append_formula(clauses)

    def add_soft(self, thing: Rule | str) -> int:
        """Add a rule or module that holds only under an assumption; return its selector."""
        selector = self._fresh()
        clauses = [[self._number[thing]]] if isinstance(thing, str) else self._clauses(thing)
        self._solver.append_formula([[*clause, -selector] for clause in clauses])
        return selector

    def demand(self, module: str) -> None:
        """Demand a module in every selection."""
        self._solver.add_clause([self._number[module]])

    def exclude(self, selection: Iterable[str]) -> None:
        """Exclude one selection from the results."""
        present = {"", *selection}
        self._solver.add_clause([-number if module in present else number for module, number in self._number.items()])

    def propagate(self, present: Iterable[str], absent: Iterable[str] = ()) -> tuple[list[str], list[str]] | None:
        """Return the modules that unit propagation finds present and absent, or None for a contradiction."""
        self.budget.spend(_STEPS_OF_VARIABLE)
        consistent, literals = self._solver.propagate(assumptions=self._literals(present, absent))
        self.budget.spend(_STEPS_OF_VARIABLE * len(literals))
        if not consistent:
            return None
        size = len(self.modules)
        true = [self.modules[literal - 1] for literal in literals if 0 < literal <= size]
        return true, [self.modules[-literal - 1] for literal in literals if -size <= literal < 0]

    def is_possible(self, present: Iterable[str], absent: Iterable[str] = ()) -> bool:
        """Return whether a selection has all of `present` and none of `absent`."""
        return self.solve(self._literals(present, absent))

    def selection(self, present: Iterable[str] = (), absent: Iterable[str] = ()) -> frozenset[str] | None:
        """Return a selection, without the root, that has all of `present` and none of `absent`, or None."""
        if not self.is_possible(present, absent):
            return None
        self.budget.spend(len(self.modules))
        model = self._solver.get_model() or []
        return frozenset(self.modules[number - 1] for number in model[: len(self.modules)] if number > 0) - {""}

    def implied(self, present: Iterable[str]) -> frozenset[str] | None:
        """Return the modules that every selection with `present` has, or None if there is no such selection.

        The search starts from one selection and tries to leave out each undecided module. Either the module is
        implied, or a selection without it decides further modules. The solver prefers selections without the
        undecided modules.
        """
        known = set(present)
        first = self.selection(known)
        if first is None:
            return None
        doubted = sorted(first - known)
        absent = set(doubted)
        self._solver.set_phases([-n if module in absent else n for module, n in self._number.items()])
        while doubted:
            self.budget.spend(len(self.modules))
            doubt = doubted[0]
            if self.is_possible(known, (doubt,)):
                model = self._solver.get_model() or []
                settled = [module for module in doubted if model[self._number[module] - 1] < 0]
                doubted = [module for module in doubted if model[self._number[module] - 1] > 0]
                self._solver.set_phases([self._number[module] for module in settled])
            else:
                known.add(doubt)
                del doubted[0]
        return frozenset(known)

    def core(self, soft: Sequence[int]) -> list[int] | None:
        """Return a minimal list of assumptions that cannot all hold, or None if all of `soft` can hold.

        With few assumptions, the list is a smallest one, unless the search exceeds the budget.
        """
        if self.solve(soft):
            return None
        smallest: list[int] = sorted(self._solver.get_core() or [])
        with suppress(TooHardError):
            for smaller in self._shrink(smallest):
                smallest = smaller
            if len(soft) <= _MAX_SOFT:
                smallest = self._smaller(soft, smallest)
        return smallest

    def solve(self, assumptions: Sequence[int]) -> bool:
        """Return whether the assumed literals can hold together."""
        budget = self.budget
        budget.spend(len(assumptions))
        before = self._num_steps()
        self._solver.prop_budget(budget.left // _STEPS_OF_PROPAGATION + 1)
        self._solver.conf_budget(budget.left // _STEPS_OF_CONFLICT + 1)
        answer: bool | None = self._solver.solve_limited(assumptions=list(assumptions))
        budget.spend(self._num_steps() - before)
        if answer is None:
            raise TooHardError
        return answer

    def _num_steps(self) -> int:
        found: dict[str, int] = self._solver.accum_stats()
        return _STEPS_OF_PROPAGATION * found["propagations"] + _STEPS_OF_CONFLICT * found["conflicts"]

    def _literals(self, present: Iterable[str], absent: Iterable[str]) -> list[int]:
        return [*(self._number[module] for module in present), *(-self._number[module] for module in absent)]

    def _fresh(self) -> int:
        self._top += 1
        return self._top

    def _shrink(self, core: list[int]) -> Iterator[list[int]]:
        """Remove assumptions that the conflict does not need, one after another, and yield each smaller list."""
        kept = core
        for selector in reversed(core):
            rest = [other for other in kept if other != selector]
            if selector in kept and not self.solve(rest):
                refined = set(self._solver.get_core() or [])
                kept = [other for other in rest if other in refined]
                yield kept

    def _smaller(self, soft: Sequence[int], known: list[int]) -> list[int]:
        """Return a core smaller than `known` if there is one, else `known`.

        Every core intersects every set whose removal ends all conflicts. The smallest set that intersects all such
        sets found so far is either a smallest core, or leads to another such set.
        """
        with Hitman(solver="g4", htype="sorted") as hitman:
            for _ in range(_MAX_ROUNDS):
                candidate: list[int] = hitman.get() or []
                if len(candidate) >= len(known):
                    return known
                if not self.solve(candidate):
                    return sorted(candidate)
                kept = list(candidate)
                for selector in soft:
                    if selector not in candidate and self.solve([*kept, selector]):
                        kept.append(selector)
                hitman.hit([selector for selector in soft if selector not in set(kept)])
        return known

    def _clauses(self, rule: Rule) -> list[list[int]]:
        """Return the clauses of a rule; modules that were not given to the solver count as absent."""
        number = self._number
        if isinstance(rule, Implication):
            if not all(module in number for module in rule.when):
                return []
            return [[*(-number[module] for module in rule.when), *(number[m] for m in rule.then if m in number)]]
        if isinstance(rule, Exclusive):
            return self._at_most_one([number[module] for module in rule.members if module in number])
        if isinstance(rule.test, Cardinality):
            found = self._count(rule.test)
        else:
            definitions: list[list[int]] = []
            found = self._test(rule.test, definitions, negated=False) + definitions
        root = number.get("")  # without the root in each clause, the solver decides them before the root is assumed
        return found if root is None else [[*clause, -root] for clause in found]

    def _test(self, test: Test, definitions: list[list[int]], *, negated: bool) -> list[list[int]]:
        """Return clauses for a test; an alternative of several clauses gets a new variable (Plaisted and Greenbaum).

        The clauses that define the new variables are added to `definitions`. They hold without condition, so that
        unit propagation from decided modules decides the new variables, and with them the test.
        """
        match test:
            case Present(module):
                return [[-self._number[module] if negated else self._number[module]]]
            case Not(inner):
                return self._test(inner, definitions, negated=not negated)
            case And(tests) | Or(tests):
                parts = [self._test(part, definitions, negated=negated) for part in tests]
                if isinstance(test, And) is not negated:
                    return [clause for part in parts for clause in part]
                joined: list[int] = []
                for part in parts:
                    if len(part) == 1:
                        joined += part[0]
                    else:
                        fresh = self._fresh()
                        joined.append(fresh)
                        definitions += ([-fresh, *clause] for clause in part)
                return [joined]

    def _count(self, count: Cardinality) -> list[list[int]]:
        literals = [self._number[module] for module in count.modules]
        size, high = len(literals), count.high
        if count.low > size or (high is not None and high < 0):
            fresh = self._fresh()
            return [[fresh], [-fresh]]
        clauses: list[list[int]] = []
        if high == 1:
            clauses += self._at_most_one(literals)
        elif high is not None and high < size:
            clauses += self._cardinality(literals, high, CardEnc.atmost)
        if count.low == 1:
            clauses.append(literals)
        elif count.low > 1:
            clauses += self._cardinality(literals, count.low, CardEnc.atleast)
        return clauses

    def _cardinality(self, literals: list[int], bound: int, encode: Callable[..., CNFPlus]) -> list[list[int]]:
        size, width = len(literals), min(bound, len(literals) - bound)
        is_small = size * width <= _SMALL_COUNTER
        self.budget.spend(_STEPS_OF_VARIABLE * size * min(width, 2 * isqrt(size)))
        encoding = EncType.seqcounter if is_small else EncType.kmtotalizer
        encoded = encode(lits=literals, bound=bound, top_id=self._top, encoding=encoding)
        self._top = max(self._top, encoded.nv)
        found: list[list[int]] = encoded.clauses
        return found

    def _at_most_one(self, literals: Sequence[int]) -> list[list[int]]:
        """Return clauses for "at most one"; in a large group, a new variable per literal means "this one or an
        earlier one"."""
        if len(literals) <= _PAIRWISE:
            return [[-one, -other] for one, other in combinations(literals, 2)]
        clauses, before = [], 0
        for literal in literals:
            here = self._fresh()
            clauses.append([-literal, here])
            if before:
                clauses += [[-before, here], [-before, -literal]]
            before = here
        return clauses
