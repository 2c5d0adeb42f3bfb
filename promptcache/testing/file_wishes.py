"""Wishes for what of a schema is to stand in files of its own.

Comes in: which elements of the language may occur. Goes out: strategies for wishes. `dividing` grants them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.testing.drafts import Elements, attribute_choices, inherited


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWish:
    """Something that is to stand in a file of its own, if anything can.

    Attributes:
        of_text: Whether it is the text of a module, by `src`, and not some modules beside each other, by `include`.
        number: Which of those that there are, counted round.
        deep: Whether the file lies in a folder below.
        prefix: How much of what the names of the modules have in common is left to the prefix; 0 is nothing.
        options: What the file says of the whitespace, separator and context of its modules.
        rules: Whether the rules that speak of nothing else come along.
        select: Whether the include says what it takes; then the file also has
        rest: what stays behind.
    """

    of_text: bool
    number: int
    deep: bool
    prefix: int
    options: Mapping[str, str]
    rules: bool
    select: bool
    rest: tuple[str, ...]


def file_wishes(elements: Elements) -> SearchStrategy[list[FileWish]]:
    """Draw no file, mostly, or one or two."""
    none: SearchStrategy[list[FileWish]] = st.just([])
    if not elements.includes:
        return none
    wish = st.builds(
        FileWish,
        of_text=st.sampled_from((False, False, True)),
        number=st.integers(0, 99),
        deep=st.booleans(),
        prefix=st.integers(0, 3),
        options=attribute_choices(**inherited(elements)),
        rules=st.booleans(),
        select=st.booleans(),
        rest=st.lists(st.sampled_from(_rest(elements)), max_size=2, unique=True).map(tuple),
    )
    options = (none, none, st.lists(wish, min_size=1, max_size=2))
    return st.integers(0, 2).flatmap(options.__getitem__)


def _rest(elements: Elements) -> tuple[str, ...]:
    """Return what a file may hold besides what is taken of it."""
    slot = ("slot",) if elements.parameters else ()
    turn = ("turn",) if elements.turns else ()
    rules = ("excludes", "rule") if elements.rules else ()
    return ("module", "text", "doc", *slot, *turn, *rules)
