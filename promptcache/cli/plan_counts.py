"""The tokens of a plan as one line, as `layout` and `render` show them."""

from __future__ import annotations

from rich.text import Text

from promptcache.cli.output import repaired_text
from promptcache.layout import Plan

REUSED, NEW = "green", "bold yellow"
"""Styles of tokens."""


def plan_line(plan: Plan, head: str, reused: str) -> Text:
    """Return the counts of a plan after `head`; `reused` has the words for the reused tokens."""
    new = f"{plan.num_new_tokens:,} new{repaired_text(plan.num_repaired_tokens)}"
    line = Text(head).append(reused, style=REUSED).append(", ").append(new, style=NEW)
    return line.append(f" · {plan.level} · the answer starts at position {plan.stop:,}")
