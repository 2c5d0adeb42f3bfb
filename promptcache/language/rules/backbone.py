"""Find the modules that the rules of a schema imply: always present, never present, or present with another module.

Unit propagation from a module finds modules that it implies. Two valid selections that have nothing else in common
show that these are all. Such selections are mostly near known ones: a few modules change, and only the rules of these
modules can break. Where none is found near, the solver searches.

A question that exceeds the limit of work stays open. The module then counts as implying nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from promptcache.language.limits import MAX_STEPS
from promptcache.language.rules.rules import Check, Implication, Rules
from promptcache.language.rules.solver import RuleSolver, TooHardError, limited_solver
from promptcache.language.syntax.conditions import Cardinality

_MAX_GUESSES = 30

_Settled: TypeAlias = tuple[set[str], set[str]]  # present and absent


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


class Backbone(NamedTuple):
    """Result of the analysis: the modules that the rules imply or forbid.

    Attributes:
        guaranteed: For each module, the modules that are present with it; for "", those of every valid prompt.
        dead: The modules that no valid prompt has.
        together: For each requested set, the modules that are present with all of it; None if that is impossible.
        open: The modules whose implications exceed the limit of work; "" means every prompt. They count as usable, and
            as present without any other.
    """

    guaranteed: Guarantees
    dead: frozenset[str]
    together: tuple[frozenset[str] | None, ...]
    open: tuple[str, ...]


class _Change(NamedTuple):
    """Difference of a selection from a known one."""

    added: Set[str]
    removed: Set[str]

    def has(self, module: str, known: Set[str]) -> bool:
        return module in self.added or (module in known and module not in self.removed)


@limited_solver(MAX_STEPS)
def find_backbone(rules: Rules, sets: Sequence[Iterable[str]] = ()) -> Backbone | None:
    """Return the modules implied by each module and by each of `sets`, or None if no selection keeps the rules.

    Raises:
        TooHardError: finding a selection takes more work than the limit allows.
    """
    with RuleSolver(rules.order) as solver, RuleSolver(rules.order) as closure:
        solver.add(rules.rules)
        settled = solver.propagate([""])
        solver.demand([""])
        first = None if settled is None else solver.selection()
        if settled is None or first is None:
            return None
        # rules that count modules mostly propagate absences, and many of them
        closure.add(
            each for each in rules.rules if isinstance(each, Implication) or not isinstance(each.test, Cardinality)
        )
        closure.demand(*settled)
        analysis = _Analysis(rules, solver, closure, *settled, {"", *first})
        more, dead = analysis.each()
        guaranteed = Guarantees(more[""], more)
        together = tuple(analysis.together(frozenset(modules), guaranteed) for modules in sets)
        return Backbone(guaranteed, dead, together, tuple(analysis.open))


class _Analysis:
    """Search for implied modules: by propagation in `closure`, in which no rule counts, or else by `solver`."""

    def __init__(
        self,
        rules: Rules,
        solver: RuleSolver,
        closure: RuleSolver,
        always: set[str],
        never: set[str],
        first: set[str],
    ) -> None:
        self._rules, self._solver, self._closure = rules, solver, closure
        self._always, self._never = always, never
        self._known = [first]
        self.open: list[str] = []
        self._choices: dict[str, list[int]] = {}
        for number, rule in enumerate(rules.rules):  # propagation without counted rules can break these ones
            if isinstance(rule, Check) or len(rule.when) + len(rule.then) > 2:
                for module in rule.modules:
                    self._choices.setdefault(module, []).append(number)

    def each(self) -> tuple[dict[str, frozenset[str]], frozenset[str]]:
        """Return the modules that each module implies, and the dead modules; "" implies those always present.

        The other ones imply those too, which are left out.
        """
        more, dead = {}, set()
        for module in self._rules.order:
            more[module] = frozenset((module,)) - self._always
            try:
                found = self._implied(more[module]) if more[module] or not module else frozenset()
            except TooHardError:
                self.open.append(module)
                continue
            if found is None:
                dead.add(module)
            elif module:
                more[module] = found
            else:
                self._always |= found
                self._closure.demand(found)
        more[""] = frozenset(self._always) - {""}
        return more, frozenset(dead)

    def together(self, modules: frozenset[str], guaranteed: Guarantees) -> frozenset[str] | None:
        """Return the modules that are present with several modules, or None if these exclude each other."""
        try:
            found = self._implied(modules)
        except TooHardError:
            found = modules.union(*(guaranteed[module] for module in modules))
        return None if found is None else (found | self._always) - {""}

    def _implied(self, wanted: frozenset[str]) -> frozenset[str] | None:
        """Return the modules that some modules imply besides those always present, or None if these are impossible."""
        settled = self._closure.propagate(wanted)
        if settled is None:
            return None
        implied = wanted | settled[0]
        doubted = self._doubted(wanted, settled, implied)
        while doubted:
            doubt = self._first(doubted)
            found = self._without(wanted, doubt, doubted)
            implied, doubted = (implied | {doubt}, doubted - {doubt}) if found is None else (implied, found)
        return None if doubted is None else implied

    def _doubted(self, wanted: frozenset[str], settled: _Settled, implied: frozenset[str]) -> Set[str] | None:
        """Return what else the found selections with the wanted modules have in common, or None if there is none."""
        if not wanted:
            return self._known[0] - self._always
        changes = [(self._near(known, settled, wanted), known) for known in self._known]
        near = [(change, known) for change, known in changes if change is not None]
        if len(near) < len(changes):
            found = self._solver.selection(wanted)
            return None if found is None else found - implied - self._always
        added = {module for change, _ in near for module in change.added} - implied
        return {module for module in added if all(change.has(module, known) for change, known in near)}

    def _without(self, wanted: frozenset[str], doubt: str, doubted: Set[str]) -> Set[str] | None:
        """Return the doubted modules of a selection with the wanted ones and without one, or None if there is none."""
        known = self._known[0]
        settled = self._closure.propagate(wanted, [doubt]) if wanted else None
        change = self._near(known, settled, wanted, [doubt])
        if change is not None:
            return {module for module in doubted if change.has(module, known)}
        self._solver.prefer(self._rules.order.keys() - doubted)
        found = self._solver.selection(wanted, [doubt])
        self._solver.prefer(())
        if found is not None and not wanted:
            self._known.append({"", *found})
        return None if found is None else doubted & found

    def _near(
        self, known: set[str], settled: _Settled | None, wanted: Iterable[str], unwanted: Iterable[str] = ()
    ) -> _Change | None:
        """Return a selection near a known one, or None if a few guesses lead to none.

        `settled` are the modules that propagation decides. A rule that the changes so far break is repaired by a
        guess: one more module is added or removed.
        """
        present, absent = list(wanted), list(unwanted)
        for _ in range(_MAX_GUESSES):
            if settled is None:
                return None
            change = _Change(settled[0] - known, settled[1] & known)
            broken = self._broken(known, change)
            if broken is None:
                return change
            if addable := broken.then - settled[1] - self._never:
                present.append(self._first(addable))
            elif removable := {*broken.when} - settled[0] - self._always:
                absent.append(self._first(removable))
            else:
                return None
            settled = self._closure.propagate(present, absent)
        return None

    def _broken(self, known: set[str], change: _Change) -> Implication | None:
        """Return a rule that a known selection breaks after a change."""
        known |= change.added
        known -= change.removed
        try:
            touched = {number for module in change.added | change.removed for number in self._choices.get(module, ())}
            self._closure.spend(len(touched))
            for number in sorted(touched):
                if rule := self._rules.broken_rule(number, known):
                    return rule
            return None
        finally:
            known -= change.added
            known |= change.removed

    def _first(self, modules: Iterable[str]) -> str:
        return min(modules, key=self._rules.order.__getitem__)
