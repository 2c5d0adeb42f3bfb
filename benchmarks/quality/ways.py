"""Ways to serve a document, as data: how its schema is written, how its KV is stored, and what a request repairs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from promptcache.diagnostics import InvalidValue
from promptcache.language import DEFAULT_REPAIR, Repair


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to serve a document.

    Attributes:
        name: In tables and for `--way`.
        context: The schema's attribute.
        scaffold: Whether the schema has a scaffold over all modules in use.
        positions: The schema's attribute; None writes none.
        requires: Whether a module requires the one that its text refers to.
        keep: Codec of the stored KV, for `engine.add_schema`.
        text: Whether arguments are written into the modules as text, without slots.
        repair: Setting of each request. Ways with a name of their own have the least, which hides nothing.
        history: Whether TTFT is that of a further question, while history has the document.
        also_beside: Names of ways to compare with, after ordinary prefill.
    """

    name: str
    context: str = "previous"
    scaffold: bool = False
    positions: str | None = None
    requires: bool = False
    keep: str = "full"
    text: bool = False
    repair: str = "slots"
    history: bool = False
    also_beside: tuple[str, ...] = ()

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of the ways to compare with; empty for ordinary prefill."""
        return () if self == PLAIN else (PLAIN.name, *self.also_beside)

    @property
    def schema_name(self) -> str:
        """Name of a schema for a document that is served in this way. Ways with one name share their schema."""
        context = f"{self.context}{'-scaffold' * self.scaffold}"
        context += f"-{self.positions}" if self.positions else ""
        context += "-requires" * self.requires
        return f"{context}-{self.keep}{'-text' * self.text}"

    @property
    def request(self) -> dict[str, Any]:
        """Options of `engine.plan`, `logits` and `generate`."""
        return {"repair": self.repair}


PLAIN = Way(name="plain")
"""Ordinary prefill of the whole text, without a schema."""

_NAMED = (
    PLAIN,
    Way(name="guaranteed", context="guaranteed"),
    Way(name="own", context="own"),
    Way(name="fixed", positions="fixed"),
    Way(name="requires", requires=True),
    Way(name="scaffold", scaffold=True),
    Way(name="int8", keep="int8", also_beside=("slots",)),
    Way(name="int4", keep="int4", also_beside=("slots",)),
    Way(name="text", text=True),
    Way(name="history", repair="all", history=True),
)

WAY_NAMES = (
    *(way.name for way in _NAMED[1:]),
    "none",
    "slots",
    "first-K",
    "attended-K",
    "first-P%",
    "attended-P%",
    "all",
)
"""Names for `--way`, besides ordinary prefill."""

DEFAULT_WAYS = (str(DEFAULT_REPAIR), "slots", "guaranteed", "scaffold")
"""Ways that `python -m benchmarks quality` compares by default."""


def way_named(name: str) -> Way:
    """Return a way by name. A setting of `repair` is the name of a way.

    Raises:
        ValueError: There is no such way.
    """
    for way in _NAMED:
        if way.name == name:
            return way
    try:
        return Way(name=name, repair=str(Repair.parse(name)))
    except InvalidValue:
        raise ValueError(f"no way '{name}'; there are {', '.join(WAY_NAMES)}") from None


def all_ways(chosen: Iterable[Way]) -> tuple[Way, ...]:
    """Return these ways and those that they are compared with; ordinary prefill is first, then as in `chosen`."""
    chosen = tuple(chosen)
    beside = [way_named(name) for way in chosen for name in way.also_beside]
    return tuple(dict.fromkeys((PLAIN, *beside, *chosen)))
