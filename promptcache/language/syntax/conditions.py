"""Parse, evaluate and write the conditions over modules that `rules` contains.

A condition is text in an attribute. `read_condition` turns it into a `Test`, which is true or false for a set of
present modules. The grammar:

    implies := or ["implies" implies]      or := and {"or" and}      and := not {"and" not}
    not     := "not" not | "(" implies ")" | path
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from typing import NamedTuple, TypeAlias

from promptcache.diagnostics import did_you_mean
from promptcache.language.limits import MAX_DEPTH

TOKEN = re.compile(r"[()]|&&?|\|\|?|[-=]>|[!,]|(?:(?![-=]>)[^\s()&|!,])+")
"""Pattern of a token: a parenthesis, keyword or path, or a symbol of another language, which gets its own message."""

_JOINING = ("and", "or", "implies")
KEYWORDS = frozenset({*_JOINING, "not"})
_SYMBOLS = {"&&": "and", "&": "and", ",": "and", "||": "or", "|": "or", "!": "not", "->": "implies", "=>": "implies"}


class Present(NamedTuple):
    """Test that is true if `module` is present."""

    module: str


class Not(NamedTuple):
    """Test that is true if `test` is false."""

    test: Test


class And(NamedTuple):
    """Test that is true if all of `tests` are true."""

    tests: tuple[Test, ...]


class Or(NamedTuple):
    """Test that is true if at least one of `tests` is true."""

    tests: tuple[Test, ...]


class Cardinality(NamedTuple):
    """Constraint that from `low` to `high` of `modules` are present; None means no limit."""

    modules: tuple[str, ...]
    low: int
    high: int | None


Test: TypeAlias = Present | Not | And | Or


class ConditionError(Exception):
    """Error for a condition that cannot be parsed, with a message, the number of the faulty token, and a fix."""

    def __init__(self, message: str, token: int, fix: str | None = None, code: str = "PC307") -> None:
        super().__init__(message)
        self.message, self.token, self.fix, self.code = message, token, fix, code


def read_condition(text: str, follow: Callable[[str, int], str]) -> Test:
    """Parse a condition. `follow` maps a path and the number of its token to the path of a module from the root.

    Raises:
        ConditionError: The condition is malformed, or nested too deeply.
    """
    tokens = TOKEN.findall(text)
    reader = _ConditionReader(tokens, follow)
    test = reader.implies(0)
    if reader.position < len(tokens):
        raise reader.unexpected("'and', 'or', 'implies' or the end")
    return test


class _ConditionReader:
    """Recursive descent parser for the tokens of a condition."""

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
            return ConditionError(f"the condition ends where {expected} is expected", last, "add it at the end")
        token = self._tokens[self.position]
        meant = _SYMBOLS.get(token)
        near = None if token in KEYWORDS else did_you_mean(token, _JOINING)
        between = "write 'and' or 'or' between two conditions"
        other = between if token not in {*KEYWORDS, ")"} else f"remove '{token}', or write a module path before it"
        fix = f"write '{meant}'" if meant else near or other
        if token.lower() == "xor":
            fix = 'write \'(a or b) and not (a and b)\', or <choose> with min="1" and max="1"'
        return ConditionError(f"{expected} is expected instead of '{token}'", self.position, fix)

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
        found = self._tokens[self.position : self.position + 1] == [token]
        self.position += found
        return found

    def _descend(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            message = f"the condition is nested more than {MAX_DEPTH} deep"
            raise ConditionError(message, self.position - 1, "split it into several rules", "PC308")


def holds(test: Test, present: Set[str]) -> bool:
    """Return whether a test is true if exactly the modules in `present` are present."""
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
    """Return the modules that a test names."""
    match test:
        case Present(module):
            return frozenset({module})
        case Not(inner):
            return modules_of(inner)
        case And(tests) | Or(tests):
            return frozenset().union(*map(modules_of, tests))


def broken_clause(test: Test, present: Set[str], *, expected: bool = True) -> tuple[frozenset[str], frozenset[str]]:
    """Return two sets of modules that explain why a test is not as `expected`.

    All modules of the first set are present, and all modules of the second set are absent. The test requires that a
    module of the first set is absent, or that a module of the second set is present. If the test fails for several
    reasons, a reason with an empty second set is preferred, then the first reason in the text.
    """
    match test:
        case Present(module):
            one, none = frozenset({module}), frozenset[str]()
            return (none, one) if expected else (one, none)
        case Not(inner):
            return broken_clause(inner, present, expected=not expected)
        case And(tests) | Or(tests):
            failing = [part for part in tests if holds(part, present) is not expected]
            reasons = [broken_clause(part, present, expected=expected) for part in failing]
            if isinstance(test, And) is expected:
                return min(reasons, key=lambda reason: bool(reason[1]))
            return frozenset().union(*(when for when, _ in reasons)), frozenset().union(*(then for _, then in reasons))
