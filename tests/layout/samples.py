"""Schemas and prompts written as XML, taken through language and layout with the byte tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.checked import CheckedSchema, Selection
from promptcache.layout import Layout, Level, Piece, Plan, lay_out, make_plan, run_variants
from promptcache.tokenizer import Tokenizer
from tests.fakes import ByteTokenizer


def read(document: str) -> CheckedSchema:
    """Parse and check a schema."""
    return check_schema(parse_schema(document))


def choose(schema: CheckedSchema, document: str) -> Selection:
    """Parse a prompt and resolve it against a schema."""
    return resolve_prompt(parse_prompt(document), schema)


def layout_of(document: str, *, bos: bool = True) -> Layout:
    """Lay out a schema."""
    return lay_out(read(document), ByteTokenizer(bos=bos))


def plan_of(schema: str, prompt: str, *, bos: bool = True) -> Plan:
    """Plan a prompt against a schema."""
    tokenizer = ByteTokenizer(bos=bos)
    layout = lay_out(read(schema), tokenizer)
    return make_plan(choose(layout.schema, prompt), layout, run_variants(layout), tokenizer)


def plan_selection(selection: Selection, tokenizer: Tokenizer | None = None) -> Plan:
    """Plan a selection with the byte tokenizer or another."""
    tokenizer = tokenizer or ByteTokenizer()
    layout = lay_out(selection.schema, tokenizer)
    return make_plan(selection, layout, run_variants(layout), tokenizer)


def level_of(schema: str, prompt: str) -> Level:
    """Plan a prompt and return its level."""
    return plan_of(schema, prompt).level


def reused_tokens(plan: Plan) -> list[tuple[int, int]]:
    """Return position and ID of every reused token."""
    parts = [piece.source for piece in plan.reused]
    return [
        (part.encoding.position_ids[index] + part.shift, part.encoding.token_ids[index])
        for part in parts
        for index in range(part.start, part.stop)
    ]


def new_tokens(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """Return position and ID of every token that is prefilled."""
    return [(part.start + index, token_id) for part in pieces for index, token_id in enumerate(part.token_ids)]


def placed_tokens(plan: Plan) -> list[tuple[int, int]]:
    """Return position and ID of every token of a request."""
    return reused_tokens(plan) + new_tokens(plan.new)


def text_of(plan: Plan) -> str:
    """Return what the model reads, in position order."""
    return ByteTokenizer().detokenize([token_id for _, token_id in sorted(placed_tokens(plan))])
