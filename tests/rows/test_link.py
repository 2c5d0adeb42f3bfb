"""Linking: segments are views of stored KV; nothing is copied or lost."""

from __future__ import annotations

import torch

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


def test_an_argument_parts_a_run() -> None:
    """An argument inside a run ends the segment: the argument must not attend to the text after it."""
    batch, row, _ = joined('<c p="word"/>')

    assert [segment.last < row.tokens.position_ids[0] for segment in batch.segments(row)] == [True] * 3 + [False]


def test_segments_are_views_of_the_store() -> None:
    """Linking copies no KV: every segment reads the store's own memory."""
    batch, row, fetched = joined("<a/><c/>")

    memory = {run.keys.untyped_storage().data_ptr() for run in fetched.handles.values()}
    assert {segment.layers().by_layer[0][0].untyped_storage().data_ptr() for segment in batch.segments(row)} <= memory
    assert row.num_copied == 0


def test_every_reused_token_is_in_one_segment() -> None:
    """Segments hold the reused tokens' KV, once each, in position order."""
    batch, row, _ = joined('<b/><c p="ab"/><d/>')

    positions = [int(each) for segment in batch.segments(row) for each in segment.position_array()]
    assert positions == sorted(set(positions))
    assert not set(positions) & set(row.tokens.position_ids)
    assert len(positions) == sum(part.num_tokens for part in row.tokens.parts)


def test_generation_does_not_write_into_stored_kv() -> None:
    """Generation does not change stored KV."""
    batch, row, fetched = joined("<a/><b/>")
    before = {index: run.keys.clone() for index, run in fetched.handles.items()}

    batch.step([(row, row.tokens.token_ids)])
    for token_id in range(5, 80):
        batch.step([(row, [token_id])])

    assert all(torch.equal(fetched.handles[index].keys, keys) for index, keys in before.items())
