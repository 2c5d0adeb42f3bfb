"""Layout: position IDs of a schema, what each run may see, and what one prompt reuses and prefills.

Comes in: checked schemas, selections, and a tokenizer. Goes out: `Layout`, `Encoding` and `Plan`. This room knows no
tensors.
"""

from promptcache.layout.encoding import Encoding, KVPart, RequestTokens
from promptcache.layout.lay_out import lay_out
from promptcache.layout.limits import check_length, check_positions
from promptcache.layout.picture import layout_html, layout_svg
from promptcache.layout.plan import make_plan
from promptcache.layout.rendering import Part, Rendering, render
from promptcache.layout.run_states import find_state, run_states
from promptcache.layout.scaffolds import scaffolds_in_use
from promptcache.layout.slot_texts import SlotText, fill_tokens, fit_tokens, longest_text, shortest_text
from promptcache.layout.types import (
    Extent,
    Layout,
    Level,
    Origin,
    Piece,
    Plan,
    Prefill,
    Reuse,
    Run,
    RunState,
    Slot,
    Stretch,
)

__all__ = [
    "Encoding",
    "Extent",
    "KVPart",
    "Layout",
    "Level",
    "Origin",
    "Part",
    "Piece",
    "Plan",
    "Prefill",
    "Rendering",
    "RequestTokens",
    "Reuse",
    "Run",
    "RunState",
    "Slot",
    "SlotText",
    "Stretch",
    "check_length",
    "check_positions",
    "fill_tokens",
    "find_state",
    "fit_tokens",
    "lay_out",
    "layout_html",
    "layout_svg",
    "longest_text",
    "make_plan",
    "render",
    "run_states",
    "scaffolds_in_use",
    "shortest_text",
]
