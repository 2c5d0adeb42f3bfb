"""Schemas and prompts written as XML, taken through language and layout with the byte tokenizer."""

from __future__ import annotations

from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.checked import CheckedSchema, Selection
from promptcache.layout import Layout, Plan, lay_out, make_plan, run_variants
from promptcache.tokenizer import Tokenizer
from tests.fakes import ByteTokenizer
from tests.laws.position_oracle import SLOTS, planned_tokens


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
    return make_plan(
        choose(layout.schema, prompt), layout, run_variants(layout), tokenizer, layout.schema.repair or SLOTS
    )


def plan_selection(selection: Selection, tokenizer: Tokenizer | None = None) -> Plan:
    """Plan a selection with the byte tokenizer or another."""
    tokenizer = tokenizer or ByteTokenizer()
    layout = lay_out(selection.schema, tokenizer)
    return make_plan(selection, layout, run_variants(layout), tokenizer, layout.schema.repair or SLOTS)


def text_of(plan: Plan) -> str:
    """Return what the model reads, in position order."""
    return ByteTokenizer().detokenize([token_id for _, token_id in sorted(planned_tokens(plan))])
