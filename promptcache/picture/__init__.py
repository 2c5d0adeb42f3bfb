"""Draw layouts and plans: SVG files, HTML pages, and views in notebooks.

```
make_chart(layout, …) -> lines to draw, large layouts folded      -> svg_element | html_page | html_fragment
```

Core rooms do not depend on this room. `promptcache` calls `register` when it is imported in IPython.
"""

from __future__ import annotations

from lxml import etree

from promptcache.layout import Layout, Plan, run_states
from promptcache.picture.html import html_page
from promptcache.picture.lines import make_chart
from promptcache.picture.notebook import register
from promptcache.picture.svg import svg_element

__all__ = ["layout_html", "layout_svg", "register"]


def layout_svg(layout: Layout, *, plan: Plan | None = None, token_bytes: int | None = None, width: int = 1000) -> str:
    """Return the picture of a layout to scale: a line for each module, positions from left to right, slots hatched.

    Args:
        layout: The layout to draw.
        plan: Plan of a prompt for this layout. The picture shows reused, new and absent tokens.
        token_bytes: KV size of one token, to show sizes in bytes.
        width: In pixels.

    Returns:
        One SVG document without scripts or external resources. Large layouts are folded to an overview.
    """
    chart = make_chart(layout, run_states(layout), plan, token_bytes)
    return etree.tostring(svg_element(chart, width), encoding="unicode")


def layout_html(layout: Layout, *, plan: Plan | None = None, token_bytes: int | None = None) -> str:
    """Return the picture as a full-window HTML page, with a table of the slots; arguments as for `layout_svg`."""
    return html_page(make_chart(layout, run_states(layout), plan, token_bytes), layout, plan)
