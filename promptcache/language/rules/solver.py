"""SAT solver for all questions about rules, and the limit of its work.

Work is counted in steps, and not in seconds, so that every machine gives the same result. Only this module imports
python-sat.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import combinations
from math import isqrt
from types import TracebackType

from pysat.card import CardEnc, EncType
from pysat.formula import CNFPlus
from pysat.solvers import Solver

from promptcache.diagnostics import PromptCacheError
from promptcache.language.limits import MAX_STEPS
from promptcache.language.rules.rules import Implication, Rule
from promptcache.language.syntax.conditions import And, Cardinality, Not, Or, Present, Test
from promptcache.locks import new_rlock

_STEPS_OF_LITERAL = 10  # of a clause, or of a propagation that Python reads
_STEPS_OF_CONFLICT = 100
_SHARE = 2  # one search takes at most this part of the steps that are left
_PAIRWISE = 5
_SMALL_COUNTER = 20_000

_LOCK = new_rlock()  # python-sat keeps jump buffers and signal handlers per process: one thread at a time


class TooHardError(PromptCacheError):
    """Error for a question about rules that takes more work than the limit allows."""

    def __init__(self) -> None:
        super().__init__("the rules are too hard to solve: the search takes too many steps")


class _Work:
    """Steps that are left of a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooHardError


_WORK: ContextVar[_Work | None] = ContextVar("work on rules", default=None)


@contextmanager
def limited_solver(max_steps: int) -> Iterator[None]:
    """Limit the steps of all questions about rules in the `with` block together, unless a limit is set already.

    A server does this for its callers. The solver holds the interpreter's lock, so other threads of the process wait
    for a hard question.
    """
    token = _WORK.set(_WORK.get() or _Work(max_steps))
    try:
        yield
    finally:
        _WORK.reset(token)


def max_steps() -> int:
    """Return the largest number of steps that a question may take here."""
    work = _WORK.get()
    return MAX_STEPS if work is None else work.limit


class RuleSolver:
    """Clauses over modules, and the questions that a solver answers about them.

    Use it in a `with` statement; other threads wait until the statement ends. A question that exceeds the limit raises
    `TooHardError`. Modules that were not given to the solver count as absent.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        self.modules = tuple(modules)
        self._number = {module: index + 1 for index, module in enumerate(self.modules)}
        self._top = len(self.modules)
        self._solver: Solver

    def __enter__(self) -> RuleSolver:
        _LOCK.acquire()
        self._solver = Solver(name="glucose4")
        self.prefer(())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._solver.delete()
        _LOCK.release()

    def add(self, rules: Iterable[Rule]) -> None:
        """Add clauses for rules."""
        clauses = [clause for rule in rules for clause in self._clauses(rule)]
        self.spend(len(clauses))
        self._solver.append_formula(clauses)

    def demand(self, present: Iterable[str], absent: Iterable[str] = ()) -> None:
        """Demand that modules are present or absent in every selection."""
        self._solver.append_formula([[literal] for literal in self._literals(present, absent)])

    def exclude(self, selection: Iterable[str]) -> None:
        """Exclude one selection from the results."""
        present = {"", *selection}
        self._solver.add_clause([-number if module in present else number for module, number in self._number.items()])

    def prefer(self, modules: Collection[str]) -> None:
        """Prefer selections with some modules, and without the others."""
        self._solver.set_phases([n if module in modules else -n for module, n in self._number.items()])

    def propagate(self, present: Iterable[str], absent: Iterable[str] = ()) -> tuple[set[str], set[str]] | None:
        """Return the modules that unit propagation finds present and absent, or None for a contradiction.

        Modules that `demand` decides are left out.
        """
        self.spend(1)
        consistent, literals = self._solver.propagate(assumptions=self._literals(present, absent))
        self.spend(3 * len(literals))  # names are slow
        size = len(self.modules)
        if not consistent:
            return None
        true = {self.modules[literal - 1] for literal in literals if 0 < literal <= size}
        return true, {self.modules[-literal - 1] for literal in literals if -size <= literal < 0}

    def is_possible(self, present: Iterable[str], absent: Iterable[str] = ()) -> bool:
        """Return whether a selection has all of `present` and none of `absent`."""
        return self._solve(self._literals(present, absent))

    def selection(self, present: Iterable[str] = (), absent: Iterable[str] = ()) -> frozenset[str] | None:
        """Return a selection, without the root, that has all of `present` and none of `absent`, or None."""
        if not self.is_possible(present, absent):
            return None
        model = self._solver.get_model() or []
        return frozenset(self.modules[number - 1] for number in model[: len(self.modules)] if number > 0) - {""}

    def conflict(self, things: Iterable[Rule | str], given: Iterable[str]) -> list[Rule | str] | None:
        """Return rules and modules that cannot hold beside the `given` modules, or None if all `things` can hold.

        Each of them is needed, unless the search exceeds the limit. The modules are assumed last: so propagation goes
        from them in all directions, and mostly meets the shortest conflict first.
        """
        selectors: dict[int, Rule | str] = {}  # literals under whose assumption a rule holds, or a module is present
        for thing in things:
            selector = self._number[thing] if isinstance(thing, str) else self._fresh()
            selectors[selector] = thing
            if not isinstance(thing, str):
                self._solver.append_formula([[*clause, -selector] for clause in self._clauses(thing)])
        always = self._literals(given, ())
        if self._solve([*selectors, *always]):
            return None
        needed = self._core(selectors)
        with suppress(TooHardError):
            for selector in reversed(needed):
                rest = [other for other in needed if other != selector]
                if selector in needed and not self._solve([*rest, *always]):
                    needed = self._core(rest)
        return [selectors[selector] for selector in needed]

    def spend(self, literals: int) -> None:
        """Count work in Python, in literals or clauses.

        Raises:
            TooHardError: the limit is reached.
        """
        work = _WORK.get()
        if work is not None:
            work.spend(_STEPS_OF_LITERAL * literals)

    def _solve(self, assumptions: Sequence[int]) -> bool:
        """Return whether the assumed literals can hold together."""
        work = _WORK.get() or _Work(MAX_STEPS)
        work.spend(len(assumptions))
        before = self._num_steps()
        self._solver.prop_budget(work.left // _SHARE + 1)
        self._solver.conf_budget(work.left // _SHARE // _STEPS_OF_CONFLICT + 1)
        answer: bool | None = self._solver.solve_limited(assumptions=list(assumptions))
        work.spend(self._num_steps() - before)
        if answer is None:
            raise TooHardError
        return answer

    def _core(self, selectors: Iterable[int]) -> list[int]:
        """Return the assumptions among `selectors` that the last contradiction used."""
        core = {*(self._solver.get_core() or ())}
        return [selector for selector in selectors if selector in core]

    def _num_steps(self) -> int:
        found: dict[str, int] = self._solver.accum_stats()
        return found["propagations"] + _STEPS_OF_CONFLICT * found["conflicts"]

    def _literals(self, present: Iterable[str], absent: Iterable[str]) -> list[int]:
        return [
            *sorted(self._number[module] for module in present),
            *sorted(-self._number[module] for module in absent),
        ]

    def _fresh(self) -> int:
        self._top += 1
        return self._top

    def _clauses(self, rule: Rule) -> list[list[int]]:
        """Return the clauses of a rule; modules that were not given to the solver count as absent."""
        number = self._number
        if isinstance(rule, Implication):
            if not all(module in number for module in rule.when):
                return []
            return [[*(-number[module] for module in rule.when), *(number[m] for m in rule.then if m in number)]]
        if isinstance(rule.test, Cardinality):
            literals = [number[module] for module in rule.test.modules if module in number]
            found = self._count(literals, rule.test.low, rule.test.high)
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

    def _count(self, literals: list[int], low: int, high: int | None) -> list[list[int]]:
        if low > len(literals):
            return [[]]
        clauses: list[list[int]] = []
        if high == 1 and 1 < len(literals) <= _PAIRWISE:
            clauses = [[-one, -other] for one, other in combinations(literals, 2)]
        elif high is not None and high < len(literals):
            clauses = self._bounded(CardEnc.atmost, literals, high)
        if low == 1:
            return [*clauses, literals]
        return [*clauses, *self._bounded(CardEnc.atleast, literals, low)] if low else clauses

    def _bounded(self, encode: Callable[..., CNFPlus], literals: list[int], bound: int) -> list[list[int]]:
        size, width = len(literals), min(bound, len(literals) - bound)
        self.spend(size * min(width, 2 * isqrt(size)))
        is_small = width <= 1 or size * width <= _SMALL_COUNTER
        encoding = EncType.seqcounter if is_small else EncType.kmtotalizer
        encoded = encode(lits=literals, bound=bound, top_id=self._top, encoding=encoding)
        self._top = max(self._top, encoded.nv)
        found: list[list[int]] = encoded.clauses
        return found
