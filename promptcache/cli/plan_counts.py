"""The tokens of a plan, as `layout` and `render` show them: as data and as one line."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from promptcache.cli.output import repaired_text
from promptcache.layout import Level, Plan

REUSED, NEW = "green", "bold yellow"
"""Styles of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCounts:
    """The tokens of a plan. `num_repaired_tokens` of the new ones are stored, and computed again."""

    level: Level
    num_reused_tokens: int
    num_new_tokens: int
    num_repaired_tokens: int
    repair: str
    next_position: int

    @classmethod
    def of(cls, plan: Plan) -> PlanCounts:
        """Count the tokens of a plan."""
        return PlanCounts(
            level=plan.level,
            num_reused_tokens=plan.num_reused_tokens,
            num_new_tokens=plan.num_new_tokens,
            num_repaired_tokens=plan.num_repaired_tokens,
            repair=str(plan.repair),
            next_position=plan.stop,
        )

    def line(self, head: str, reused: str) -> Text:
        """Return the counts after `head`; `reused` has the words for the reused tokens."""
        new = f"{self.num_new_tokens:,} new{repaired_text(self.num_repaired_tokens)}"
        line = Text(head).append(reused, style=REUSED).append(", ").append(new, style=NEW)
        return line.append(f" · {self.level} · the answer starts at position {self.next_position:,}")
