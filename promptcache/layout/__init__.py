"""Layout: position IDs of a schema, the context of each run, and the plan of one prompt.

```
lay_out(schema, tokenizer) -> Layout        run_variants(layout) -> variants with their encodings
make_plan(selection, layout, variants, tokenizer) -> Plan
```

This room uses no tensors and draws no pictures.
"""

from promptcache.layout.encoding import Encoding, KVPart, RequestTokens, context_digest, num_shared
from promptcache.layout.lay_out import lay_out
from promptcache.layout.members import member_encodings
from promptcache.layout.pieces import Origin, Piece, Plan, piece_texts, positions_to_repair
from promptcache.layout.plan import (
    check_length,
    check_positions,
    make_plan,
    needed_positions,
)
from promptcache.layout.run_variants import pair_encodings, run_variants, scaffolds_in_use
from promptcache.layout.types import (
    Layout,
    LayoutLeaf,
    LayoutNode,
    LeafKind,
    Level,
    Run,
    RunPiece,
    Slot,
    TextPiece,
    Variant,
    VariantKind,
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
    "Piece",
    "Plan",
    "RequestTokens",
    "Run",
    "RunPiece",
    "Slot",
    "TextPiece",
    "Variant",
    "VariantKind",
    "check_length",
    "check_positions",
    "context_digest",
    "lay_out",
    "make_plan",
    "member_encodings",
    "needed_positions",
    "num_shared",
    "pair_encodings",
    "piece_texts",
    "positions_to_repair",
    "run_variants",
    "scaffolds_in_use",
]
