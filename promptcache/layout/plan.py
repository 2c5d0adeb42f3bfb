"""Plan a prompt: choose the stored tokens to reuse and the tokens to prefill, with their positions.

The work grows with the selection, not with the schema. This module also checks that a model has enough positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from promptcache.diagnostics import ContextLengthExceeded, Diagnostic, PromptError, SchemaError, diagnostic, shown
from promptcache.language import DEFAULT_REPAIR, Placement, Prompt, Repair, RepairKind, Selection
from promptcache.layout.added_text import added_text
from promptcache.layout.members import members_in_use
from promptcache.layout.pieces import Origin, Piece, Plan, placed, recomputed
from promptcache.layout.repair import positions_to_repair
from promptcache.layout.run_tokens import RunTokens, SlotContents
from promptcache.layout.run_variants import runs_in_use, scaffolds_in_use, variants_in_use
from promptcache.layout.seam import seam_of, without_last
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
    contents = SlotContents(selection, tokenizer)
    scaffolds = scaffolds_in_use(selection.schema.scaffolds, selection.modules)
    modules = RunTokens(contents, moves=repair.kind is not RepairKind.NONE)
    runs = runs_in_use(layout, selection.modules, members)
    for run, variant in variants_in_use(layout, runs, variants, scaffolds):
        modules.add(run, variant)
    if contents.faults:
        raise PromptError(contents.faults)
    pieces = placed(modules.pieces, layout.placement)
    seam = seam_of(pieces, layout, tokenizer)
    added = added_text(selection, layout, seam, tokenizer, conversations or Conversations(tokenizer), answers)
    pieces = without_last(pieces, added.num_replaced)
    if positions := positions_to_repair(pieces, repair):
        pieces = recomputed(pieces, positions)
    first = pieces[-1].stop if pieces else 0
    pieces = _with_added(pieces, added.parts)
    if all(piece.source is not None for piece in pieces) and len(pieces) == layout.has_bos:
        raise PromptError([_empty(selection)])
    return Plan(
        selection=selection,
        layout=layout,
        pieces=_with_new_end(pieces),
        repair=repair,
        first_answer=None if added.num_asked is None else first + added.num_asked,
        warnings=added.warnings,
    )


def _with_added(pieces: tuple[Piece, ...], parts: Iterable[tuple[Origin, tuple[int, ...]]]) -> tuple[Piece, ...]:
    """Return pieces with the text that the prompt adds behind them."""
    position, found = pieces[-1].stop if pieces else 0, [*pieces]
    for origin, token_ids in parts:
        if token_ids:
            found.append(Piece(token_ids=token_ids, start=position, origin=origin))
            position += len(token_ids)
    return tuple(found)


def _with_new_end(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return pieces with a new last token, because only new tokens have logits."""
    last = pieces[-1]
    return (*pieces[:-1], *recomputed((last,), (last.stop - 1,), Origin.LAST))


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
        sizes = {path: sum(layout.runs[run].size for run in runs) for path, runs in layout.runs_of.items()}
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


def context_length_fault(error: ContextLengthExceeded, prompt: Selection | Prompt) -> Diagnostic:
    """Return PC504, which reports an error of `check_positions` with the other faults of a prompt."""
    return diagnostic("PC504", str(error), prompt.span)


def _empty(selection: Selection) -> Diagnostic:
    message = "the prompt is empty: no module it uses has text, and it adds none"
    return diagnostic("PC506", message, selection.span, "name a module that has text, or write text after the modules")
