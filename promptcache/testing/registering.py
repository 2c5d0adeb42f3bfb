"""Schemas by their type: `st.from_type(Schema)` draws schemas that check.

Hypothesis calls `register` when it is imported, through the entry point of the same name; the strategies themselves are
loaded when one is drawn.
"""

from __future__ import annotations

from typing import Any

from promptcache.language import CheckedSchema, Schema


def register() -> None:
    """Tell Hypothesis how to draw schemas."""
    from hypothesis import strategies as st

    st.register_type_strategy(Schema, lambda _: _schemas().map(lambda schema: schema.source))
    st.register_type_strategy(CheckedSchema, lambda _: _schemas())


def _schemas() -> Any:
    from promptcache.testing.strategies import schemas

    return schemas()
