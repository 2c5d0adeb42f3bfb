"""What a parameter takes, in words.

Comes in: a parameter of a schema. Goes out: one line, for completion and for `explain`. This file prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from promptcache.language.schema import ParameterType

_TYPES = {
    ParameterType.LINE: "one line",
    ParameterType.INT: "a whole number",
    ParameterType.NUMBER: "a number",
}
_MAX_CHOICES = 6


class Accepting(Protocol):
    """A parameter as a schema or a list of facts has it."""

    @property
    def length(self) -> int: ...
    @property
    def type(self) -> ParameterType: ...
    @property
    def choices(self) -> Sequence[str]: ...
    @property
    def pattern(self) -> str | None: ...


def described(parameter: Accepting) -> str:
    """Return what an argument may be: its length, then what it is made of."""
    return ", ".join((f"at most {parameter.length} token{'s' * (parameter.length != 1)}", *accepted(parameter)))


def accepted(parameter: Accepting) -> tuple[str, ...]:
    """Return what an argument is made of, where that is not any text: its type or choices, and its pattern."""
    words = [_TYPES[parameter.type]] if parameter.type in _TYPES else []
    if parameter.choices:
        more = len(parameter.choices) - _MAX_CHOICES
        words.append(f"one of {', '.join(parameter.choices[:_MAX_CHOICES])}{f' and {more} more' if more > 0 else ''}")
    if parameter.pattern is not None:
        words.append(f"matches {parameter.pattern}")
    return tuple(words)
