"""The engine reads templates as the documents that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcache.diagnostics import SchemaError
from promptcache.engine import Engine
from promptcache.language import Schema, load_prompt
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model


def test_templates_answer_like_their_documents(tmp_path: Path) -> None:
    """A schema and a prompt made by templates give the answer of the same documents written out."""
    (tmp_path / "s.xml.j2").write_text('<schema name="s"><module name="m">{{ text }}</module></schema>')
    (tmp_path / "p.xml.j2").write_text('<prompt schema="s"><m/>{{ question }}</prompt>')
    engine = Engine(tiny_model(), ByteTokenizer())
    engine.add_schema(Schema("s").module("m", "Low < high."))
    written = engine.generate('<prompt schema="s"><m/>Why?</prompt>', do_sample=False, max_new_tokens=4)

    engine.add_schema(tmp_path / "s.xml.j2", context={"text": "Low < high."})
    prompt = load_prompt(tmp_path / "p.xml.j2", context={"question": "Why?"})

    assert engine.generate(prompt, do_sample=False, max_new_tokens=4).token_ids == written.token_ids


def test_a_context_without_a_template_is_refused() -> None:
    """A context for text or a schema that is no template is a mistake, and is told."""
    engine = Engine(tiny_model(), ByteTokenizer())
    for source in ('<schema name="s"/>', Schema("s")):
        with pytest.raises(SchemaError, match="PC605"):
            engine.add_schema(source, context={})
