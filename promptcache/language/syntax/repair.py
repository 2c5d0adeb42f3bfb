"""The setting `repair`: which cached tokens a request computes again in its full context."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from promptcache.diagnostics import InvalidValue, Kind

_COUNTED = re.compile(r"(attended|first)-(0|[1-9][0-9]{0,8})(%?)")


class RepairKind(StrEnum):
    """Kind of repair (docs/layout.md, "Repair")."""

    NONE = "none"
    SLOTS = "slots"
    FIRST = "first"
    ATTENDED = "attended"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Repair:
    """Cached tokens that a request computes again, because they were encoded in another context.

    Attributes:
        kind: All kinds but `none` include `slots`.
        amount: For `first` and `attended`, the number of tokens of each run, or a share of its tokens in percent.
        is_share: Whether `amount` is a share.
    """

    kind: RepairKind
    amount: int = 0
    is_share: bool = False

    @classmethod
    def parse(cls, text: str) -> Repair:
        """Return the repair of this name: "none", "slots", "all", or for example "attended-8" or "first-20%".

        Raises:
            InvalidValue: There is no such repair.
        """
        REPAIR.check("repair", text, InvalidValue)
        found = _COUNTED.fullmatch(text)
        return cls(RepairKind(text)) if found is None else cls(RepairKind(found[1]), int(found[2]), bool(found[3]))

    def __str__(self) -> str:
        return f"{self.kind}-{self.amount}{'%' * self.is_share}" if self.is_counted else self.kind.value

    @property
    def is_counted(self) -> bool:
        """Whether `amount` tokens of each run are computed again."""
        return self.kind in (RepairKind.FIRST, RepairKind.ATTENDED)

    def num_again(self, num_tokens: int) -> int:
        """Return how many tokens are computed again for a run with `num_tokens` cached ones, in another context."""
        if self.is_counted:
            return min(num_tokens, -(-num_tokens * self.amount // 100) if self.is_share else self.amount)
        return num_tokens if self.kind is RepairKind.ALL else 0


def _is_repair(value: object) -> bool:
    if not isinstance(value, str):
        return False
    found = _COUNTED.fullmatch(value)
    if found is None:
        return value in (RepairKind.NONE, RepairKind.SLOTS, RepairKind.ALL)
    return not found[3] or int(found[2]) <= 100


REPAIR: Final = Kind(
    "none, slots, all, attended-8 or first-16 (tokens of each text), attended-10% or first-20% (of them)", _is_repair
)
"""The kind of the texts that `Repair.parse` takes."""

DEFAULT_REPAIR: Final = Repair(RepairKind.FIRST, 16)
