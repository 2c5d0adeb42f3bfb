"""Plan a prompt: choose the stored tokens to reuse and the tokens to prefill, with their positions.

The work grows with the selection, not with the schema. This module also checks that a model has enough positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType

from promptcache.diagnostics import ContextLengthExceeded, PromptError, SchemaError, diagnostic, shown
from promptcache.language import DEFAULT_REPAIR, Placement, Repair, RepairKind, Selection
from promptcache.layout.added_text import with_added_text
from promptcache.layout.members import members_in_use
from promptcache.layout.pieces import Origin, Plan, positions_to_repair, recomputed
from promptcache.layout.run_tokens import run_pieces
from promptcache.layout.run_variants import variants_in_use
from promptcache.layout.types import Layout, Variant
from promptcache.tokenizer import Conversations, Tokenizer


def make_plan(
    selection: Selection,
    layout: Layout,
    variants: Sequence[Variant],
    tokenizer: Tokenizer,
    repair: Repair | None = None,
    answers: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    conversations: Conversations | None = None,
    codec: str = "full",
) -> Plan:
    """Return the plan of a prompt: each token is reused or prefilled at a position.

    Args:
        selection: A valid prompt of the layout's schema.
        layout: The schema's positions under `tokenizer`.
        variants: The result of `run_variants(layout)`.
        tokenizer: Provides the token IDs of arguments and added text.
        repair: The cached tokens to compute again; None means the setting of the schema, else the default.
        answers: Token IDs of assistant turns that a model generated, by index in `selection.messages`. The text of
            these turns is not tokenized, unless the chat template changes it.
        codec: The codec of the variants, which members of collections also get.
        conversations: The chat template of `tokenizer` with options of the request; None means without options.

    Raises:
        PromptError: an argument has more tokens than its slot (PC501), or the prompt is empty (PC506).
        ContextLengthExceeded: A member or the added text alone needs more positions than the model has.
    """
    repair = repair or selection.schema.repair or DEFAULT_REPAIR
    members, variants = members_in_use(selection, layout, variants, tokenizer, codec)
    runs = variants_in_use(selection, layout, variants, members)
    found = run_pieces(runs, selection, tokenizer, moves=repair.kind is not RepairKind.NONE)
    if layout.placement is Placement.CLOSED:
        starts = accumulate((len(piece.token_ids) for piece in found), initial=0)
        found = [
            replace(piece, start=start, source=piece.source and piece.source.at(start))
            for piece, start in zip(found, starts, strict=False)
        ]
    conversations = conversations or Conversations(tokenizer)
    pieces, first_answer, warnings = with_added_text(found, selection, layout, tokenizer, conversations, answers)
    if positions := positions_to_repair(pieces, repair):
        pieces = recomputed(pieces, positions)
    if all(piece.source is not None for piece in pieces) and len(pieces) == layout.has_bos:
        message = "the prompt is empty: no module it uses has text, and it adds none"
        fix = "name a module that has text, or write text after the modules"
        raise PromptError([diagnostic("PC506", message, selection.span, fix)])
    *others, last = pieces
    end = recomputed([last], (last.stop - 1,), Origin.LAST)  # only new tokens have logits
    return Plan(
        selection=selection,
        layout=layout,
        pieces=(*others, *end),
        repair=repair,
        first_answer=first_answer,
        warnings=warnings,
    )


def needed_positions(layout: Layout, variants: Sequence[Variant]) -> int:
    """Return the number of positions that a schema needs.

    With fixed positions these are the places of all modules and whole slots, with closed positions those of the
    encodings.
    """
    if layout.placement is Placement.FIXED:
        return layout.stop
    return max((variant.encoding.position_ids[-1] + 1 for variant in variants), default=0)


def check_length(layout: Layout, variants: Sequence[Variant], max_positions: int, model: str = "the model") -> None:
    """Refuse a schema that needs more positions than the model has.

    Args:
        variants: The result of `run_variants(layout)`.
        max_positions: Number of positions of the model.
        model: Name of the model for the message.

    Raises:
        SchemaError: PC503, with both numbers and the longest module.
    """
    needed = needed_positions(layout, variants)
    if needed > max_positions:
        sizes = dict.fromkeys(layout.runs_of, 0)
        for run in layout.runs:
            sizes[run.module] += run.stop - run.start
        longest = max(sizes, key=sizes.__getitem__)
        owner, span = "the text outside of modules", layout.schema.source.span
        if longest:
            owner, span = f"module '{longest}'", layout.schema.modules[longest].span
        message = f"schema '{layout.schema.name}' needs {needed} positions, {model} has {max_positions}"
        fix = "shorten it, or divide it into modules of a union or a collection, of which a prompt names a few"
        raise SchemaError([diagnostic("PC503", f"{message}: {owner} has {sizes[longest]}", span, fix)])


def check_positions(plan: Plan, max_positions: int, max_new_tokens: int) -> None:
    """Refuse a request whose prompt and generated tokens together need more positions than the model has.

    Raises:
        ContextLengthExceeded: With the positions of the prompt, the requested tokens, and the positions of the model.
    """
    if plan.stop + max_new_tokens > max_positions:
        raise ContextLengthExceeded(
            f"the prompt takes {plan.stop} positions and {shown(max_new_tokens)} new tokens were asked for, "
            f"the model has {max_positions}"
        )
