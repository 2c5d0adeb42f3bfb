"""Do the positions suffice: a schema or a request against what the model has.

Comes in: a layout or a plan, and the model's number of positions. Goes out: nothing, or a typed error with both
numbers. This file does not know where the model's number comes from.
"""

from __future__ import annotations

from promptcache.diagnostics import ContextLengthExceeded, Diagnostic, SchemaError, shown
from promptcache.layout.types import Layout, Plan


def check_length(layout: Layout, max_positions: int, model: str = "the model") -> None:
    """Refuse a schema that needs more positions than the model has.

    Args:
        layout: Its `stop` is what the longest of its prompts takes without any text of its own.
        max_positions: How many positions the model has.
        model: What the message calls the model.

    Raises:
        SchemaError: PC503, with both numbers.
    """
    if layout.stop > max_positions:
        message = f"schema '{layout.schema.name}' needs {layout.stop} positions, {model} has {max_positions}"
        raise SchemaError([Diagnostic(code="PC503", message=message, span=layout.schema.source.span)])


def check_positions(plan: Plan, max_positions: int, max_new_tokens: int) -> None:
    """Refuse a request whose prompt and generated tokens together need more positions than the model has.

    Raises:
        ContextLengthExceeded: with the positions that the prompt takes, those that were asked for and those that there
            are.
    """
    if plan.stop + max_new_tokens > max_positions:
        raise ContextLengthExceeded(
            f"the prompt takes {plan.stop} positions and {shown(max_new_tokens)} new tokens were asked for, "
            f"the model has {max_positions}"
        )
