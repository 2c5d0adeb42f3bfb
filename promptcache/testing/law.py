"""What a law is: a name, what it is about, and a function that raises `BrokenLaw` where it does not hold.

This file knows no particular law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class BrokenLaw(AssertionError):
    """A law does not hold; says what is wrong, and for what."""


class Over(StrEnum):
    """What a law is about: the schema alone, or every prompt, set of named modules or invalid prompt of it."""

    SCHEMA = "schema"
    PROMPT = "prompt"
    NAMED = "named modules"
    INVALID = "invalid prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A law by its name; `check` takes what the law is over."""

    name: str
    over: Over
    check: Callable[..., None]

    @property
    def statement(self) -> str:
        """The law in one sentence."""
        return (self.check.__doc__ or "").strip().partition("\n")[0]


def hold(holds: bool, wrong: str, *about: object) -> None:
    """Raise `BrokenLaw` unless something holds."""
    if not holds:
        told = ", ".join(map(str, about))
        raise BrokenLaw(f"{wrong} ({told})" if told else wrong)
