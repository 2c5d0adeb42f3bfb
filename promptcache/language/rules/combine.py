"""The `rules` elements of a schema to checks and clauses.

Comes in: what the elements say, and the modules of the schema. Goes out: a `Check` for each rule, and a diagnostic for
every condition that cannot be read and every path that leads nowhere. This file solves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from promptcache.diagnostics import Diagnostic, Span
from promptcache.language.rules.rules import Check, Declaration, Implication, RuleKind
from promptcache.language.syntax.conditions import (
    MAX_CLAUSES,
    ConditionError,
    Count,
    Literals,
    Not,
    Or,
    Test,
    TooManyClausesError,
    clauses_of,
    clauses_of_count,
    read_condition,
)
from promptcache.language.syntax.names import MAX_SUGGESTIONS, absolute, is_path, nowhere, path_help, quoted
from promptcache.language.syntax.nodes import Assert, Choose, Combination, Exclude, Require, RuleList, place

_MAX_ALL_CLAUSES = 60_000
_MAX_LISTED = 6


def combine(lists: Iterable[RuleList], modules: Mapping[str, object], faults: list[Diagnostic]) -> tuple[Check, ...]:
    """Return the checks that `rules` elements stand for; what is wrong with them goes to `faults`."""
    combiner = _Combiner(modules, faults)
    found = (combiner.check(rule) for rules in lists for rule in rules.combinations)
    return tuple(check for check in found if check is not None)


class _Combiner:
    """Turns rules into checks; `faults` grows as it goes."""

    def __init__(self, modules: Mapping[str, object], faults: list[Diagnostic]) -> None:
        self._modules = modules
        self._faults = faults
        self._order = {module: number for number, module in enumerate(modules)}
        self._num_clauses = 0

    def check(self, rule: Combination) -> Check | None:
        if self._num_clauses > _MAX_ALL_CLAUSES:
            return None
        before = len(self._faults)
        test, words = self._read(rule)
        if len(self._faults) > before or test is None:
            return None
        try:
            clauses = clauses_of_count(test) if isinstance(test, Count) else clauses_of(test)
        except TooManyClausesError:
            self._num_clauses += MAX_CLAUSES
            self._too_large(rule, f"this rule has more than {MAX_CLAUSES}")
            return None
        self._num_clauses += len(clauses)
        if self._num_clauses > _MAX_ALL_CLAUSES:
            self._too_large(rule, f"the rules up to here have more than {_MAX_ALL_CLAUSES}")
            return None
        kind = RuleKind(type(rule).__name__.lower())
        declared = Declaration(kind=kind, words=words, message=rule.message, span=rule.span)
        return Check(test=test, clauses=tuple(self._implication(clause, declared) for clause in clauses))

    def _too_large(self, rule: Combination, limit: str) -> None:
        message = f"too much to check: taken apart into clauses, {limit}"
        self._fault("PC308", message, rule.span, "divide the rule, or put alternatives into a union")

    def _implication(self, clause: Literals, declared: Declaration) -> Implication:
        when = tuple(sorted(clause[0], key=self._order.__getitem__)) or ("",)
        return Implication(kind=declared.kind, when=when, then=clause[1], span=declared.span, declared=declared)

    def _read(self, rule: Combination) -> tuple[Test | Count | None, str]:
        match rule:
            case Require():
                condition = self._condition(rule, "if", rule.condition)
                consequence = self._condition(rule, "then", rule.consequence)
                test = Or((Not(condition), consequence)) if condition and consequence else None
                return test, f"if {_plain(rule.condition)} then {_plain(rule.consequence)}"
            case Assert():
                return self._condition(rule, "test", rule.test), f"{_plain(rule.test)} must hold"
            case Exclude():
                modules = self._paths(rule)
                words = "'{}' and '{}' exclude each other".format(*modules) if len(modules) == 2 else ""
                return Count(modules, 0, 1), words or f"at most one of {_listed(modules)} can be used"
            case Choose():
                modules = self._paths(rule)
                self._check_bounds(rule, len(modules))
                return Count(
                    modules, rule.minimum or 0, rule.maximum
                ), f"{_bounds(rule)} of {_listed(modules)} must be used"

    def _check_bounds(self, rule: Choose, size: int) -> None:
        low, high = rule.minimum or 0, size if rule.maximum is None else rule.maximum
        if low > high:
            limit = f"there are {size} modules" if rule.maximum is None else f"max is {high}"
            self._fault("PC309", f"min is {low}, but {limit}", place(rule, "min"), "lower min")
        elif low > size:
            self._fault("PC309", f"min is {low}, but there are {size} modules", place(rule, "min"), "lower min")

    def _condition(self, rule: Require | Assert, attribute: str, text: str) -> Test | None:
        def follow(path: str, token: int) -> str:
            return self._follow(path, attribute, place(rule, attribute, token))

        try:
            return read_condition(text, follow)
        except ConditionError as fault:
            message = f"{attribute}={quoted(text)}: {fault.message}"
            self._fault(fault.code, message, place(rule, attribute, fault.token), fault.mend)
            return None

    def _paths(self, rule: Exclude | Choose) -> tuple[str, ...]:
        found = [
            self._follow(path, "modules", place(rule, "modules", number)) for number, path in enumerate(rule.modules)
        ]
        return tuple(dict.fromkeys(found))

    def _follow(self, path: str, attribute: str, span: Span) -> str:
        target = absolute(path, "")
        if not is_path(path):
            self._fault("PC207", f"{quoted(path)} is not a path of module names", span, path_help(path))
        elif target not in self._modules and len(self._faults) < MAX_SUGGESTIONS:
            message, mend = nowhere(target, self._modules)
            self._fault("PC208", f"{attribute}: {message}", span, mend)
        elif target not in self._modules:
            self._fault("PC208", f"{attribute}: {quoted(path)} leads to no module", span, None)
        return target

    def _fault(self, code: str, message: str, span: Span, mend: str | None) -> None:
        self._faults.append(Diagnostic(code=code, message=message, span=span, help=mend))


def _plain(text: str) -> str:
    return " ".join(text.split())


def _bounds(rule: Choose) -> str:
    if rule.minimum == rule.maximum:
        return f"exactly {rule.maximum}"
    least = f"at least {rule.minimum}" if rule.minimum else ""
    most = "" if rule.maximum is None else f"at most {rule.maximum}"
    return " and ".join(filter(None, (least, most)))


def _listed(modules: tuple[str, ...]) -> str:
    more = f" and {len(modules) - _MAX_LISTED} more" if len(modules) > _MAX_LISTED else ""
    return ", ".join(f"'{module}'" for module in modules[:_MAX_LISTED]) + more
