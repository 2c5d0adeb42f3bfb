"""Modules that a prompt may name, and the smallest selection with some."""

import operator
from collections.abc import Set

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.language import CheckedSchema, ancestors, open_solver
from promptcache.testing import selections
from promptcache.testing.selection import list_selections


def named_modules(schema: CheckedSchema) -> SearchStrategy[frozenset[str]]:
    """Draw modules for a prompt to name, with their ancestors, whether or not the rules allow them together.

    Most draws are a valid selection with one module changed, or two joined: then a single rule may forbid them.
    """
    paths = list(schema.modules)
    if not paths:
        return st.just(frozenset())
    few = st.sets(st.sampled_from(paths), max_size=6)
    near = st.builds(lambda modules, other: modules ^ {other}, selections(schema), st.sampled_from(paths))
    joined = st.builds(operator.or_, selections(schema), selections(schema))
    return st.one_of(few, near, joined).map(
        lambda named: frozenset(outer for path in named for outer in (path, *ancestors(path)))
    )


def smallest_with(schema: CheckedSchema, modules: Set[str]) -> frozenset[str] | None:
    """Return a valid selection of few modules that holds `modules`, or None if there is none."""
    listed = list_selections(schema)
    if listed is not None:
        return next((selection for selection in listed if modules <= selection), None)
    with open_solver(schema.rules) as solver:
        return solver.selection(modules)
