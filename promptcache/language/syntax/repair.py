"""The setting `repair`: which cached tokens a request computes again in its full context."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from promptcache.diagnostics import InvalidValue, Kind

REPAIRS: Final = "none, slots, all, first-16 (tokens of each run) or first-20% (of its tokens)"
"""The values of `repair`, for messages."""

_FIRST = re.compile(r"first-(0|[1-9][0-9]{0,8})(%?)")


class RepairKind(StrEnum):
    """Kind of repair (docs/layout.md, "Repair")."""

    NONE = "none"
    SLOTS = "slots"
    FIRST = "first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Repair:
    """Cached tokens that a request computes again, because they were encoded in another context.

    Attributes:
        kind: All kinds but `none` include `slots`.
        amount: For `first`, the number of tokens of each run, or a share of its tokens in percent.
        is_share: Whether `amount` is a share.
    """

    kind: RepairKind
    amount: int = 0
    is_share: bool = False

    @classmethod
    def parse(cls, text: str) -> Repair:
        """Return the repair of this name: "none", "slots", "all", or for example "first-16" or "first-20%".

        Raises:
            InvalidValue: There is no such repair.
        """
        REPAIR.check("repair", text, InvalidValue)
        found = _FIRST.fullmatch(text)
        return cls(RepairKind(text)) if found is None else cls(RepairKind.FIRST, int(found[1]), bool(found[2]))

    def __str__(self) -> str:
        return f"first-{self.amount}{'%' * self.is_share}" if self.kind is RepairKind.FIRST else self.kind.value

    def first_tokens(self, num_tokens: int) -> int:
        """Return how many of a run's `num_tokens` cached tokens in use are computed again if its context differs."""
        match self.kind:
            case RepairKind.ALL:
                return num_tokens
            case RepairKind.FIRST:
                return min(num_tokens, -(-num_tokens * self.amount // 100) if self.is_share else self.amount)
        return 0


def is_repair(value: object) -> bool:
    """Whether `Repair.parse` takes a value."""
    if not isinstance(value, str):
        return False
    found = _FIRST.fullmatch(value)
    if found is None:
        return value in (RepairKind.NONE, RepairKind.SLOTS, RepairKind.ALL)
    return not found[2] or int(found[1]) <= 100


REPAIR: Final = Kind(REPAIRS, is_repair)
"""The kind of the texts that `Repair.parse` takes."""

DEFAULT_REPAIR: Final = Repair(RepairKind.SLOTS)
