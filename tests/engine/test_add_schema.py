"""`add_schema`: schemas of the paper, schemas that fit tokenizer and model, and templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache import Engine
from promptcache.demo import MODEL_FOLDER
from promptcache.diagnostics import SchemaError
from promptcache.language import CheckedSchema, Placement, Prompt, Schema, check_schema, module, slot
from promptcache.layout import check_length, lay_out, run_variants
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.texts import maybe
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import HubTokenizer, declared_positions
from tests import strategies
from tests.conftest import law_examples

PAPER = """<schema name="default">
  <module name="preface">
    Just some text with parameter:
    <parameter name="param-name" length="5" scaffold="[to be filled later]"/>
    <module name="nested">Nested</module>
    <system>
      <union scaffold="first">
        <module name="first">Prompt type 1.</module>
        <module name="second" cache="false">Prompt type 2, with <parameter name="message" length="10"/></module>
      </union>
    </system>
  </module>
  <module name="task"><union><module name="task-a">Task <parameter name="speed" length="5"/></module></union></module>
</schema>"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The demo model."""
    return Engine.from_pretrained("demo")


def test_schemas_of_the_paper_load_unchanged(engine: Engine) -> None:
    """A placeholder longer than its slot is cut, and the prompt is answered like its reference."""
    engine.add_schema(PAPER)
    prompt = '<prompt schema="default"><preface param-name="a house"><first/></preface>Go on.</prompt>'
    layout = engine.plan(prompt).layout
    (cut,) = (each for run in layout.runs for each in run.slots if each.parameter == "param-name")

    assert [warning.code for warning in layout.warnings] == ["PC511"]
    assert len(cut.filler_ids) == 5
    assert (engine.logits(prompt) - engine.reference(prompt)).abs().max() < 1e-3


def _codes(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except SchemaError as error:
        return [found.code for found in error.diagnostics]
    return []


@settings(max_examples=law_examples(0.1), deadline=None)
@given(schema=strategies.schemas(), reserve=st.integers(-3, 3), default=maybe(st.sampled_from(("a", "one two three"))))
def test_what_fits_the_model_is_taken(engine: Engine, schema: CheckedSchema, reserve: int, default: str | None) -> None:
    """An engine accepts exactly the schemas that fit the tokenizer and the positions of its model folder."""
    positions = declared_positions(MODEL_FOLDER)
    assert positions is not None
    used = lay_out(schema, engine.tokenizer).stop
    padding = module("padding", slot("words", 2, default=default), reserve=max(1, positions - used + reserve))
    children = (padding, *schema.source.children)
    padded = check_schema(Schema.of(replace(schema.source, positions=Placement.FIXED, children=children)))

    tokenizer = HubTokenizer.from_folder(MODEL_FOLDER)
    expected = _codes(lambda: check_length(layout := lay_out(padded, tokenizer), run_variants(layout), positions))

    assert _codes(lambda: engine.add_schema(padded)) == expected


def test_templates_answer_like_their_documents(tmp_path: Path) -> None:
    """A schema and a prompt from templates give the answer of the same documents written out."""
    (tmp_path / "s.xml.j2").write_text('<schema name="s"><module name="m">{{ text }}</module></schema>')
    (tmp_path / "p.xml.j2").write_text('<prompt schema="s"><m/>{{ question }}</prompt>')
    engine = Engine(tiny_model(), ByteTokenizer())
    engine.add_schema(Schema("s").module("m", "Low < high."))
    written = engine.generate('<prompt schema="s"><m/>Why?</prompt>', do_sample=False, max_new_tokens=4)

    engine.add_schema(tmp_path / "s.xml.j2", context={"text": "Low < high."})
    prompt = Prompt.from_file(tmp_path / "p.xml.j2", context={"question": "Why?"})

    assert engine.generate(prompt, do_sample=False, max_new_tokens=4).token_ids == written.token_ids


def test_a_context_without_a_template_is_refused() -> None:
    """A context for a schema that is not a template is refused."""
    engine = Engine(tiny_model(), ByteTokenizer())
    for source in ('<schema name="s"/>', Schema("s")):
        with pytest.raises(SchemaError, match="PC605"):
            engine.add_schema(source, context={})
