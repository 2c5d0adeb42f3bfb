"""Register views for notebooks: IPython shows schemas, layouts, plans and answers as pictures.

Views are registered by type name, so registering imports neither IPython nor the types.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from promptcache.layout import Layout, Plan, run_states
from promptcache.picture.chart import Chart
from promptcache.picture.html import completion_fragment, html_fragment, schema_fragment
from promptcache.picture.lines import make_chart

if TYPE_CHECKING:
    from promptcache.decode import Completion


def register() -> None:
    """Register the views if IPython is running, else do nothing."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        views = shell.display_formatter.formatters["text/html"]
        for path, view in VIEWS.items():
            views.for_type_by_name(*path.rsplit(".", 1), view)


def _layout_chart(layout: Layout, plan: Plan | None = None) -> Chart:
    return make_chart(layout, run_states(layout), plan, None)


def _layout_view(layout: Layout) -> str:
    return html_fragment(_layout_chart(layout))


def _plan_view(plan: Plan) -> str:
    return html_fragment(_layout_chart(plan.layout, plan))


def _completion_view(completion: Completion) -> str:
    return completion_fragment(completion, _layout_chart(completion.plan.layout, completion.plan))


VIEWS: dict[str, Any] = {
    "promptcache.language.checked.CheckedSchema": schema_fragment,
    "promptcache.layout.types.Layout": _layout_view,
    "promptcache.layout.pieces.Plan": _plan_view,
    "promptcache.decode.completion.Completion": _completion_view,
}
"""View of each type, by its full name."""
