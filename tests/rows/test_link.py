"""Linking: segments are views of stored KV; nothing is copied or lost."""

from __future__ import annotations

from promptcache.encode.executor import Fetched
from promptcache.language import CheckedSchema, Selection, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.rows.batch import Batch
from promptcache.rows.forward_pass import Row
from promptcache.testing.tiny_model import tiny_model
from tests.laws.service import serve

SCHEMA = """<schema name="s" positions="fixed" context="guaranteed">root text<module name="a">module a</module><module name="b">module b</module>
<module name="c">c <parameter name="p" length="4"/> and more</module><module name="d">module d</module></schema>"""
MODEL = tiny_model()


def joined(references: str) -> tuple[Batch, Row, Fetched]:
    """A row of a prompt, over a fresh store."""
    schema = check_schema(parse_schema(SCHEMA))
    service = serve(schema, MODEL)
    tokens = service.plan(prompt_of(references, schema)).tokens
    fetched = service.executor.fetch(part.encoding for part in tokens.parts)
    batch = Batch(MODEL)
    return batch, batch.join(tokens, fetched.handles), fetched


def prompt_of(references: str, schema: CheckedSchema) -> Selection:
    """Return a prompt that names modules."""
    return resolve_prompt(parse_prompt(f'<prompt schema="s">{references}tail</prompt>'), schema)


def test_segments_are_views_of_the_store() -> None:
    """Linking copies no KV: every segment reads the store's own memory."""
    batch, row, fetched = joined("<a/><c/>")

    memory = {run.keys.untyped_storage().data_ptr() for run in fetched.handles.values()}
    assert {segment.layers().by_layer[0][0].untyped_storage().data_ptr() for segment in batch.segments(row)} <= memory
    assert row.num_copied == 0
