"""Conditions over modules, as `rules` states them: read, evaluated, and taken apart into clauses.

Comes in: the text of an attribute, or module paths. Goes out: a `Test` that a set of modules passes or not, and the
clauses that say the same to a solver. This file knows no schema and no solver.

    implies := or ["implies" implies]      or := and {"or" and}      and := not {"and" not}
    not     := "not" not | "(" implies ")" | path
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from itertools import combinations
from math import comb
from typing import NamedTuple, TypeAlias

from promptcache.diagnostics import did_you_mean

MAX_CLAUSES = 10_000
"""The most clauses that one rule may come to."""

TOKEN = re.compile(r"[()]|&&?|\|\|?|[-=]>|[!,]|(?:(?![-=]>)[^\s()&|!,])+")
"""What a condition is made of: parentheses, keywords and paths; and symbols that only other languages have."""

_MAX_TOKENS = 1_000
_MAX_DEPTH = 50
_MAX_COMPARED = 60
_JOINING = ("and", "or", "implies")
KEYWORDS = frozenset({*_JOINING, "not"})
_SYMBOLS = {"&&": "and", "&": "and", ",": "and", "||": "or", "|": "or", "!": "not", "->": "implies", "=>": "implies"}


class Present(NamedTuple):
    """This module is present."""

    module: str


class Not(NamedTuple):
    """`test` does not hold."""

    test: Test


class And(NamedTuple):
    """All of `tests` hold."""

    tests: tuple[Test, ...]


class Or(NamedTuple):
    """At least one of `tests` holds."""

    tests: tuple[Test, ...]


class Count(NamedTuple):
    """From `low` to `high` of `modules` are present; None is no limit."""

    modules: tuple[str, ...]
    low: int
    high: int | None


Test: TypeAlias = Present | Not | And | Or

Literals: TypeAlias = tuple[frozenset[str], frozenset[str]]
"""A clause: whenever all of the first modules are present, at least one of the second is."""


class TooManyClausesError(Exception):
    """A rule comes to more than `MAX_CLAUSES` clauses."""


class ConditionError(Exception):
    """A condition that cannot be read: what is wrong with which of its tokens, and a way to mend it."""

    def __init__(self, message: str, token: int, mend: str | None = None, code: str = "PC307") -> None:
        super().__init__(message)
        self.message, self.token, self.mend, self.code = message, token, mend, code


def read_condition(text: str, follow: Callable[[str, int], str]) -> Test:
    """Read a condition.

    Args:
        text: As it was written.
        follow: Turns a path and the number of its token into the path of a module from the root.

    Raises:
        ConditionError: it is malformed, too long, or nested too deeply.
    """
    tokens = TOKEN.findall(text)
    if len(tokens) > _MAX_TOKENS:
        message = f"the condition has {len(tokens)} words, and at most {_MAX_TOKENS} are read"
        raise ConditionError(message, _MAX_TOKENS, "divide it into several rules", "PC308")
    reader = _Reader(tokens, follow)
    test = reader.implies(0)
    if reader.position < len(tokens):
        raise reader.unexpected("'and', 'or', 'implies' or the end")
    return test


class _Reader:
    """Reads one token after another."""

    def __init__(self, tokens: list[str], follow: Callable[[str, int], str]) -> None:
        self._tokens = tokens
        self._follow = follow
        self.position = 0

    def implies(self, depth: int) -> Test:
        left = self._joined("or", depth)
        if not self._take("implies"):
            return left
        self._descend(depth)
        return Or((Not(left), self.implies(depth + 1)))

    def unexpected(self, expected: str) -> ConditionError:
        if self.position == len(self._tokens):
            last = max(self.position - 1, 0)
            return ConditionError(f"the condition ends where {expected} is expected", last)
        token = self._tokens[self.position]
        meant = _SYMBOLS.get(token)
        near = None if token in KEYWORDS else did_you_mean(token, _JOINING)
        mend = f"write '{meant}'" if meant else near
        return ConditionError(f"'{token}' stands where {expected} is expected", self.position, mend)

    def _joined(self, word: str, depth: int) -> Test:
        def part() -> Test:
            return self._joined("and", depth) if word == "or" else self._single(depth)

        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else (Or if word == "or" else And)(tuple(parts))

    def _single(self, depth: int) -> Test:
        if self._take("not"):
            self._descend(depth)
            return Not(self._single(depth + 1))
        if self._take("("):
            self._descend(depth)
            inner = self.implies(depth + 1)
            if not self._take(")"):
                raise self.unexpected("')'")
            return inner
        here = self.position
        if here == len(self._tokens) or self._tokens[here] in {*KEYWORDS, *_SYMBOLS, ")"}:
            raise self.unexpected("a module path, 'not' or '('")
        self.position += 1
        return Present(self._follow(self._tokens[here], here))

    def _take(self, token: str) -> bool:
        if self.position < len(self._tokens) and self._tokens[self.position] == token:
            self.position += 1
            return True
        return False

    def _descend(self, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            message = f"the condition is nested more than {_MAX_DEPTH} deep"
            raise ConditionError(message, self.position - 1, "divide it into several rules", "PC308")


def holds(test: Test, present: Set[str]) -> bool:
    """Whether a set of modules passes a test."""
    match test:
        case Present(module):
            return module in present
        case Not(inner):
            return not holds(inner, present)
        case And(tests):
            return all(holds(part, present) for part in tests)
        case Or(tests):
            return any(holds(part, present) for part in tests)


def modules_of(test: Test) -> frozenset[str]:
    """Return the modules that a test speaks of."""
    match test:
        case Present(module):
            return frozenset({module})
        case Not(inner):
            return modules_of(inner)
        case And(tests) | Or(tests):
            return frozenset().union(*map(modules_of, tests))


def without(test: Test, absent: Callable[[str], bool]) -> Test | bool:
    """Return what is left of a test when some modules are never present; or its truth, when that is settled."""
    match test:
        case Present(module):
            return not absent(module) and test
        case Not(inner):
            rest = without(inner, absent)
            return not rest if isinstance(rest, bool) else Not(rest)
        case And(tests) | Or(tests):
            settles = isinstance(test, Or)
            rests = [without(part, absent) for part in tests]
            open_ones = tuple(rest for rest in rests if not isinstance(rest, bool))
            if settles in rests or not open_ones:
                return settles if settles in rests else not settles
            return open_ones[0] if len(open_ones) == 1 else type(test)(open_ones)


def write_condition(test: Test, name: Callable[[str], str]) -> str:
    """Return a condition that `read_condition` reads as this test; `name` writes the path of a module."""
    match test:
        case Present(module):
            return name(module)
        case Not(inner):
            return f"not {_written(inner, name)}"
        case And(tests) | Or(tests):
            return (" or " if isinstance(test, Or) else " and ").join(_written(part, name) for part in tests)


def _written(test: Test, name: Callable[[str], str]) -> str:
    condition = write_condition(test, name)
    return f"({condition})" if isinstance(test, And | Or) else condition


def clauses_of(test: Test) -> tuple[Literals, ...]:
    """Return clauses that hold together exactly when the test does; none is part of another.

    Raises:
        TooManyClausesError: there would be too many.
    """
    return tuple(_strongest(_clauses(test, negated=False)))


def clauses_of_count(count: Count) -> tuple[Literals, ...]:
    """Return clauses that hold together exactly when the count does.

    Raises:
        TooManyClausesError: there would be too many.
    """
    modules, size = count.modules, len(count.modules)
    smallest = size - count.low + 1
    largest = size if count.high is None else count.high
    number = (comb(size, smallest) if count.low else 0) if smallest > 0 else 1
    if number + comb(size, largest + 1) > MAX_CLAUSES:
        raise TooManyClausesError
    enough = combinations(modules, max(smallest, 0)) if count.low else ()
    few = combinations(modules, largest + 1)
    return (
        *((frozenset[str](), frozenset(some)) for some in enough),
        *((frozenset(some), frozenset()) for some in few),
    )


def _clauses(test: Test, *, negated: bool) -> list[Literals]:
    match test:
        case Present(module):
            one = frozenset({module})
            return [(one, frozenset())] if negated else [(frozenset(), one)]
        case Not(inner):
            return _clauses(inner, negated=not negated)
        case And(tests) | Or(tests):
            parts = [_clauses(part, negated=negated) for part in tests]
            return _any_of(parts) if isinstance(test, Or) != negated else _all_of(parts)


def _all_of(parts: Iterable[list[Literals]]) -> list[Literals]:
    found = list(dict.fromkeys(clause for part in parts for clause in part))
    if len(found) > MAX_CLAUSES:
        raise TooManyClausesError
    return found


def _any_of(parts: Iterable[list[Literals]]) -> list[Literals]:
    found: list[Literals] = [(frozenset(), frozenset())]
    for part in parts:
        if len(found) * len(part) > MAX_CLAUSES:
            raise TooManyClausesError
        joined = ((when | more_when, then | more_then) for when, then in found for more_when, more_then in part)
        found = list(dict.fromkeys(clause for clause in joined if clause[0].isdisjoint(clause[1])))
    return found


def _strongest(clauses: list[Literals]) -> list[Literals]:
    """Leave out clauses that follow from another one; of many clauses all are kept."""
    if len(clauses) > _MAX_COMPARED:
        return clauses
    return [
        clause
        for clause in clauses
        if not any(other != clause and other[0] <= clause[0] and other[1] <= clause[1] for other in clauses)
    ]
