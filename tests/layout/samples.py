"""Schemas and prompts written as XML, taken through language and layout with the byte tokenizer."""

from promptcache.language import Repair, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.checked import CheckedSchema, Selection
from promptcache.layout import Layout, Plan, lay_out, make_plan, run_variants
from promptcache.tokenizer import Tokenizer
from tests.fakes import ByteTokenizer
from tests.laws.position_oracle import SLOTS


def read(document: str) -> CheckedSchema:
    return check_schema(parse_schema(document))


def choose(schema: CheckedSchema, document: str) -> Selection:
    return resolve_prompt(parse_prompt(document), schema)


def layout_of(document: str, *, bos: bool = True) -> Layout:
    return lay_out(read(document), ByteTokenizer(bos=bos))


def plan_of(schema: str, prompt: str, *, bos: bool = True) -> Plan:
    return plan_selection(choose(read(schema), prompt), ByteTokenizer(bos=bos))


def plan_selection(selection: Selection, tokenizer: Tokenizer | None = None, repair: Repair | None = None) -> Plan:
    """Plan a selection; `repair` is by default that of the schema, else `SLOTS`."""
    tokenizer = tokenizer or ByteTokenizer()
    layout = lay_out(selection.schema, tokenizer)
    return make_plan(selection, layout, run_variants(layout), tokenizer, repair or selection.schema.repair or SLOTS)
