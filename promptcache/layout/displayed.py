"""Layout and plan that show themselves in a notebook.

Comes in: what `lay_out` and `make_plan` work out. Goes out: the same, as classes that a notebook draws. They stand
apart from `layout.types` because the picture is made from those types: what is drawn need not know its painter.
"""

from __future__ import annotations

from dataclasses import dataclass

from promptcache.layout.picture import layout_svg
from promptcache.layout.run_states import run_states
from promptcache.layout.types import Layout, Plan


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DisplayedLayout(Layout):
    """A layout that a notebook shows as a picture."""

    def _repr_html_(self) -> str:
        return layout_svg(self, run_states(self))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DisplayedPlan(Plan):
    """A plan that a notebook shows as a picture of what it reuses and prefills."""

    def _repr_html_(self) -> str:
        return layout_svg(self.layout, run_states(self.layout), plan=self)
