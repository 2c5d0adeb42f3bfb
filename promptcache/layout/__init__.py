"""Layout: position IDs of a schema, what each run attends to, and what one prompt reuses and prefills.

```
lay_out(schema, tokenizer) -> Layout        run_states(layout) -> states with their encodings
make_plan(selection, layout, states, tokenizer) -> Plan
```

The room knows no tensors and draws nothing.
"""

from promptcache.layout.encoding import Encoding, KVPart, RequestTokens
from promptcache.layout.lay_out import lay_out
from promptcache.layout.limits import check_length, check_positions
from promptcache.layout.plan import make_plan
from promptcache.layout.rendering import RenderedPart, Rendering, render
from promptcache.layout.run_states import find_state, run_states
from promptcache.layout.scaffolds import scaffolds_in_use
from promptcache.layout.slot_texts import SlotText, fill_tokens, fit_tokens, longest_text, shortest_text
from promptcache.layout.types import (
    Layout,
    LayoutLeaf,
    LayoutNode,
    LeafKind,
    Level,
    Origin,
    Plan,
    Prefill,
    Reuse,
    Run,
    RunPiece,
    RunState,
    Slot,
    Stretch,
)

__all__ = [
    "Encoding",
    "KVPart",
    "Layout",
    "LayoutLeaf",
    "LayoutNode",
    "LeafKind",
    "Level",
    "Origin",
    "Plan",
    "Prefill",
    "RenderedPart",
    "Rendering",
    "RequestTokens",
    "Reuse",
    "Run",
    "RunPiece",
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
    "longest_text",
    "make_plan",
    "render",
    "run_states",
    "scaffolds_in_use",
    "shortest_text",
]
