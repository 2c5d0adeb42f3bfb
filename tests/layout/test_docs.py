"""The worked example in docs/layout.md is what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptcache.layout import Layout, Level, Plan, Reuse, Slot, lay_out, make_plan, run_states
from tests.fakes import ByteTokenizer
from tests.layout.samples import choose, read

DOCUMENT = Path(__file__).parents[2].joinpath("docs", "layout.md").read_text(encoding="utf-8")
SCHEMA, PROMPT = re.findall(r"```xml\n(.*?)```", DOCUMENT, flags=re.DOTALL)[:2]


def planned(schema: str = SCHEMA, prompt: str = PROMPT) -> Plan:
    layout = lay_out(read(schema), ByteTokenizer())
    return make_plan(choose(layout.schema, prompt), layout, run_states(layout), ByteTokenizer())


def table(*rows: tuple[object, ...]) -> str:
    head, *body = (" | ".join(str(cell) for cell in row) for row in rows)
    return "\n".join(f"| {row} |" for row in (head, " | ".join("---" for _ in rows[0]), *body))


def shown(text: str) -> str:
    return f"`{text}`".replace("\n", "↵")


def layout_rows(layout: Layout) -> Iterator[tuple[object, ...]]:
    yield "run", "owner", "positions", "text"
    for run in layout.runs:
        for piece in run.pieces:
            what = f"slot `{piece.parameter}`" if isinstance(piece, Slot) else shown(piece.text)
            yield run.index, run.module or "–", f"{piece.start}–{piece.stop - 1}", what


def encoding_rows(layout: Layout) -> Iterator[tuple[object, ...]]:
    yield "encoding", "tokens", "sees the encodings"
    for state in run_states(layout):
        text = ByteTokenizer().detokenize(state.encoding.token_ids)
        yield state.index, shown(text), ", ".join(str(index) for index in state.sees) or "–"


def source_of(reuse: Reuse, layout: Layout) -> str:
    """Return the number of an encoding of the schema, or what it is behind."""
    numbers = {state.encoding: state.index for state in run_states(layout)}
    encoding = reuse.part.encoding
    if encoding in numbers:
        return f"encoding {numbers[encoding]}"
    seen = ", ".join(str(numbers[part.encoding]) for part in encoding.context)
    return f"`{layout.runs[reuse.run].module}`, which sees {seen}"


def plan_rows(plan: Plan) -> Iterator[tuple[object, ...]]:
    yield "positions", "tokens", "from"
    rows = [(new.start, new.stop - 1, new.token_ids, f"new: {new.origin}") for new in plan.prefill]
    for reuse in plan.reuse:
        part = reuse.part
        rows.append((part.first, part.last, part.token_ids, source_of(reuse, plan.layout)))
    for first, last, token_ids, origin in sorted(rows):
        yield f"{first}–{last}" if first < last else first, shown(ByteTokenizer().detokenize(token_ids)), origin


@pytest.mark.parametrize("rows", [layout_rows, encoding_rows])
def test_the_tables_of_the_schema_are_computed(rows):
    """Positions and contexts in the worked example are those that the code gives."""
    assert table(*rows(planned().layout)) in DOCUMENT


def test_the_table_of_the_prompt_is_computed():
    """The code plans the reused and prefilled tokens that the worked example states."""
    assert table(*plan_rows(planned())) in DOCUMENT


def test_the_level_of_the_prompt_is_computed():
    """The worked example says its prompt's level and where generation starts."""
    plan = planned()

    assert plan.level is Level.MODULAR
    assert f"generation starts at position {plan.stop}" in DOCUMENT


def test_the_exact_variant_of_the_prompt_is_exact():
    """The change that the page suggests makes the worked example exact."""
    schema = SCHEMA.replace('name="miami"', 'name="miami" requires="plan"')

    assert planned(schema, PROMPT.replace(' days="3"', "")).level is Level.EXACT
