"""Regular expressions for arguments, matched in time linear in the text whatever they look like.

Comes in: a pattern. Goes out: whether it matches a text from end to end. The syntax is the common part of all dialects:
characters, `.`, classes, `\\d \\w \\s` and their opposites, groups, `|`, and `* + ? {m,n}`; no anchors, look-around and
back references. This file knows no parameters.

How. A pattern becomes a machine of states; all states that a beginning of the text can lead to are followed at once.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeAlias

from promptcache.language.syntax.names import quoted

MAX_TEXT = 10_000
"""The longest text that is matched, in characters."""

MAX_PATTERN = 2_000
"""The longest pattern, in characters."""

_MAX_STATES = 500
_MAX_REPETITIONS = 10_000  # of parts, where they are written out
_MAX_DEPTH = 20
_MAX_WAYS = 16  # of going on with a text, where many are wanted
_MAX_WAYS_KEPT = 1_000
_MAX_STEPS = 40_000  # looking for many
_BOUNDS = re.compile(r"\{([0-9]{1,3})(,([0-9]{0,3}))?\}")
_SETS: dict[str, Callable[[str], bool]] = {
    "d": lambda character: character.isdecimal(),
    "w": lambda character: character.isalnum() or character == "_",
    "s": str.isspace,
}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r"}

_Test: TypeAlias = Callable[[str], bool]
_Ways: TypeAlias = Mapping[frozenset[int], str]
"""Texts by the states that they lead to."""


@lru_cache(maxsize=64)
def read_pattern(text: str) -> Pattern:
    """Return a pattern; one that was read lately is not read again.

    Raises:
        PatternError: it is no pattern of this syntax, or too large.
    """
    return Pattern(text)


class PatternError(Exception):
    """A pattern that cannot be read: why, at which of its characters, and what can be done."""

    def __init__(self, message: str, position: int, advice: str | None = None) -> None:
        super().__init__(message)
        self.message, self.position, self.help = message, position, advice


class _State(NamedTuple):
    """Goes on to `following`: when a character passes `test`, or at once where there is no test."""

    test: _Test | None
    following: list[int]


_Part: TypeAlias = Callable[[int], int]
"""Adds the states of a part of the pattern before a given state, and returns the first of them."""


class Pattern:
    """A pattern that has been read.

    Raises:
        PatternError: it is no pattern of this syntax, or too large.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            message = f"the pattern has {len(text)} characters, and at most {MAX_PATTERN} are read"
            raise PatternError(message, MAX_PATTERN)
        self._text = text
        self._position = self._num_repetitions = 0
        self._states: list[_State] = [_State(None, [])]
        part = self._either(0)
        if self._position < len(text):
            raise PatternError(f"'{text[self._position]}' stands alone", self._position)
        self._start = part(0)
        self._ways: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the whole text; a text longer than `MAX_TEXT` is not looked at."""
        if len(text) > MAX_TEXT:
            return False
        reached = frozenset(self._closed([self._start]))
        for character in text:
            after = self._ways.get((reached, character))
            if after is None:
                after = self._after(reached, character)
                if len(self._ways) < _MAX_WAYS_KEPT:
                    self._ways[reached, character] = after
            reached = after
        return 0 in reached

    def shortest(self, characters: str) -> str | None:
        """Return a shortest text of these characters that the pattern matches, or None if there is none."""
        characters = self._distinct(characters)
        left = self._num_left(characters)
        if self._start not in left:
            return None
        reached, text = self._closed([self._start]), ""
        for still in reversed(range(left[self._start])):
            ways = ((each, self._after(reached, each)) for each in characters)
            further = ((each, {place for place in after if left.get(place) == still}) for each, after in ways)
            character, reached = next((each, after) for each, after in further if after)
            text += character
        return text

    def matching(self, characters: str, max_length: int) -> Iterator[str]:
        """Yield texts of these characters that the pattern matches, by their length: some of each that occurs."""
        characters = self._distinct(characters)
        waiting = {frozenset(self._closed([self._start])): ""}
        steps = 0
        for _ in range(max_length + 1):
            yield from (text for reached, text in waiting.items() if 0 in reached)
            steps += len(waiting) * len(characters)
            if steps > _MAX_STEPS:
                return
            waiting = dict(islice(self._longer(waiting, characters).items(), _MAX_WAYS))

    def _longer(self, waiting: _Ways, characters: str) -> _Ways:
        """Return the texts with one character more; of those that lead to the same states, the first."""
        longer: dict[frozenset[int], str] = {}
        for reached, text in waiting.items():
            for each in characters:
                if after := self._after(reached, each):
                    longer.setdefault(after, text + each)
        return longer

    def _num_left(self, characters: str) -> Mapping[int, int]:
        """Return how many of these characters it takes at least from each state to the end, where they lead there."""
        before: dict[int, list[tuple[int, int]]] = {}
        for place, state in enumerate(self._states):
            if state.test is None or any(map(state.test, characters)):
                for following in state.following:
                    before.setdefault(following, []).append((place, state.test is not None))
        left, waiting = {0: 0}, deque([0])
        while waiting:
            place = waiting.popleft()
            for earlier, length in before.get(place, ()):
                found = left[place] + length
                if found < left.get(earlier, found + 1):
                    left[earlier] = found
                    (waiting.append if length else waiting.appendleft)(earlier)
        return left

    def _distinct(self, characters: str) -> str:
        """Return the first of those characters that pass the same tests."""
        tests = {state.test for state in self._states if state.test is not None}
        first: dict[tuple[bool, ...], str] = {}
        for each in characters:
            first.setdefault(tuple(test(each) for test in tests), each)
        return "".join(first.values())

    def _after(self, reached: Iterable[int], character: str) -> frozenset[int]:
        passed = (state for state in map(self._states.__getitem__, reached) if state.test and state.test(character))
        return frozenset(self._closed(place for state in passed for place in state.following))

    def _closed(self, places: Iterable[int]) -> set[int]:
        reached: set[int] = set()
        waiting = list(places)
        while waiting:
            place = waiting.pop()
            if place not in reached:
                reached.add(place)
                if self._states[place].test is None:
                    waiting.extend(self._states[place].following)
        return reached

    def _add(self, test: _Test | None, following: list[int]) -> int:
        if len(self._states) >= _MAX_STATES:
            raise PatternError(f"the pattern is too large: it has more than {_MAX_STATES} states", 0)
        self._states.append(_State(test, following))
        return len(self._states) - 1

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _next(self, expected: str) -> str:
        character = self._peek()
        if not character:
            raise PatternError(f"the pattern ends where {expected} is expected", max(len(self._text) - 1, 0))
        self._position += 1
        return character

    def _either(self, depth: int) -> _Part:
        parts = [self._sequence(depth)]
        while self._peek() == "|":
            self._position += 1
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else lambda after: self._add(None, [part(after) for part in parts])

    def _sequence(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self._peek() not in {"", "|", ")"}:
            parts.append(self._repeated(self._single(depth)))

        def build(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return build

    def _repeated(self, part: _Part) -> _Part:
        least, most = 1, 1
        match self._peek():
            case "*":
                least, most = 0, -1
            case "+":
                least, most = 1, -1
            case "?":
                least, most = 0, 1
            case "{":
                found = _BOUNDS.match(self._text, self._position)
                if found is None:
                    raise PatternError("'{' begins no number of repetitions, as in {2,5}; write \\{", self._position)
                least = int(found[1])
                most = least if found[2] is None else int(found[3]) if found[3] else -1
                if -1 < most < least:
                    raise PatternError("the second number is smaller than the first", self._position)
                self._position = found.end() - 1
            case _:
                return part
        self._position += 1
        if self._peek() and self._peek() in "*+?{":
            raise PatternError(f"'{self._peek()}' follows another repetition", self._position)
        return lambda after: self._times(part, least, most, after)

    def _times(self, part: _Part, least: int, most: int, after: int) -> int:
        self._num_repetitions += max(least, most)
        if self._num_repetitions > _MAX_REPETITIONS:
            raise PatternError(f"the pattern repeats its parts more than {_MAX_REPETITIONS} times", 0)
        if most < 0:
            loop = self._add(None, [after])
            self._states[loop].following.append(part(loop))
            after = loop
        last = after
        for _ in range(most - least):
            after = self._add(None, [part(after), last])
        for _ in range(least):
            after = part(after)
        return after

    def _single(self, depth: int) -> _Part:
        start = self._position
        character = self._next("a character")
        match character:
            case "(":
                return self._group(start, depth)
            case "[":
                test = self._class()
            case ".":
                test = "\n".__ne__
            case "\\":
                test = _test_of(self._escaped())
            case "*" | "+" | "?" | "{" | "}" | "]" | "^" | "$":
                if character in "^$":
                    raise PatternError("a pattern matches from end to end", start, self._without_anchors())
                raise PatternError(f"'{character}' stands alone", start, f"write \\{character}")
            case _:
                test = character.__eq__
        return lambda after: self._add(test, [after])

    def _without_anchors(self) -> str:
        """Say how a pattern is written that begins with ^ or ends with $, which say here what is always so."""
        inner = self._text.removeprefix("^").removesuffix("$")
        bare = not any(character in inner for character in "^$")
        return f"leave ^ and $ out, as in pattern={quoted(inner)}" if bare and inner else "leave ^ and $ out"

    def _group(self, start: int, depth: int) -> _Part:
        if depth >= _MAX_DEPTH:
            raise PatternError(f"groups are nested more than {_MAX_DEPTH} deep", start)
        if self._peek() == "?" and self._text[self._position : self._position + 2] != "?:":
            raise PatternError("groups with '?' are not supported, but for (?:…)", start)
        self._position += 2 if self._peek() == "?" else 0
        inner = self._either(depth + 1)
        self._next("')'")
        return inner

    def _escaped(self) -> str | _Test:
        """Return what stands for itself behind a backslash, or the test of a set."""
        character = self._next("a character after the backslash")
        if character.lower() in _SETS:
            inside = _SETS[character.lower()]
            return inside if character.islower() else lambda other: not inside(other)
        if character not in _CONTROL and character.isalnum():
            raise PatternError(f"there is no \\{character}", self._position - 2)
        return _CONTROL.get(character, character)

    def _class(self) -> _Test:
        tests: list[_Test] = []
        negated = self._peek() == "^"
        self._position += negated
        while (character := self._next("']'")) != "]" or not tests:
            start = self._position - 1
            first = self._escaped() if character == "\\" else character
            if self._peek() == "-" and self._text[self._position + 1 : self._position + 2] not in {"", "]"}:
                self._position += 1
                tests.append(self._range(first, start))
            else:
                tests.append(_test_of(first))
        return lambda other: any(test(other) for test in tests) is not negated

    def _range(self, first: str | _Test, start: int) -> _Test:
        character = self._next("a character")
        last = self._escaped() if character == "\\" else character
        if not isinstance(first, str) or not isinstance(last, str):
            raise PatternError("a range goes from one character to another; write \\- for the character", start)
        if last < first:
            raise PatternError(f"the range {first}-{last} runs backwards", start)
        return lambda other: first <= other <= last


def _test_of(found: str | _Test) -> _Test:
    return found.__eq__ if isinstance(found, str) else found
