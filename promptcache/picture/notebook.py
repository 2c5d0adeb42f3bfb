"""Register views for notebooks: IPython shows layouts, plans and answers as pictures.

Views are registered by type name, so registering imports neither IPython nor the types.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from promptcache.layout import Layout, Plan
from promptcache.picture.html import html_fragment
from promptcache.picture.view import view

if TYPE_CHECKING:
    from promptcache.decode import Completion


def register() -> None:
    """Register the views if IPython is running, else do nothing."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        views = shell.display_formatter.formatters["text/html"]
        for path, shown in VIEWS.items():
            views.for_type_by_name(*path.rsplit(".", 1), shown)


def _view(shown: Layout | Plan) -> str:
    return html_fragment(view(shown))


def _completion_view(completion: Completion) -> str:
    usage = completion.usage
    facts = [
        f"{usage.num_reused_tokens:,} tokens reused",
        f"{usage.num_new_tokens:,} new",
        f"{usage.num_generated_tokens:,} generated",
        f"level {completion.level}{', lossy' if completion.lossy else ''}",
        f"first token after {1e3 * completion.timing.ttft_s:,.0f} ms",
        f"ended by {completion.finish_reason}",
    ]
    return html_fragment(view(completion.plan), *completion.text.split("\n"), " · ".join(facts))


VIEWS: dict[str, Any] = {
    "promptcache.layout.types.Layout": _view,
    "promptcache.layout.pieces.Plan": _view,
    "promptcache.decode.completion.Completion": _completion_view,
}
"""View of each type, by its full name."""
