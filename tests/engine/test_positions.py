"""A schema states where its cached text stands in requests; the setting of the engine is for schemas that do not."""

from __future__ import annotations

import pytest

from promptcache.diagnostics import InvalidGeneration, InvalidValue
from promptcache.engine import Engine
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = """<schema name="s" context="guaranteed">Begin.<module name="a">The first text.</module><module name="b">The second text.</module>
<module name="c">The third text.</module></schema>"""
PROMPT = '<prompt schema="s"><a/><c/>Go on.</prompt>'


def engine_with(positions: str | None, schema: str = SCHEMA) -> Engine:
    engine = Engine(tiny_model(), ByteTokenizer(), positions=positions)
    engine.add_schema(schema)
    return engine


@pytest.mark.parametrize(("own", "stated"), [("closed", "fixed"), ("fixed", "closed")])
def test_the_schema_goes_before_the_engine(own: str, stated: str) -> None:
    """A schema that states its positions is answered as by an engine with them; another one as the engine says."""
    engine, other = engine_with(own), engine_with(stated)
    assert engine.plan(PROMPT).tokens != other.plan(PROMPT).tokens

    engine.add_schema(SCHEMA.replace('name="s"', f'name="s" positions="{stated}"'))
    assert engine.plan(PROMPT).tokens == other.plan(PROMPT).tokens
    assert engine.logits(PROMPT).allclose(other.logits(PROMPT))


def test_other_values_are_refused() -> None:
    """Other positions are an error that names those that there are, and a request has none of its own."""
    with pytest.raises(InvalidValue, match="closed"):
        engine_with("open")
    with pytest.raises(InvalidGeneration, match="positions"):
        engine_with(None).generate(PROMPT, positions="fixed")
