"""Stores with a `Pace` load an encoding only where loading is faster than encoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcache import Engine, StoreConfig
from promptcache.kv import Pace, Tier
from promptcache.runtime.completion import Source
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = (
    '<schema name="books">The shelf holds:<module name="a">Old books.</module><module name="b">Maps.</module></schema>'
)
PROMPT = '<prompt schema="books"><a/><b/>Which?</prompt>'


def engine(folder: Path, pace: Pace | None = None) -> Engine:
    """A small model whose store has a folder."""
    made = Engine(tiny_model(), ByteTokenizer(), store=StoreConfig(folder=folder, pace=pace))
    made.add_schema(SCHEMA)
    return made


@pytest.mark.parametrize(
    ("encode_tokens_per_s", "source"), [(None, Source.LOAD), (1e12, Source.MISS), (1e-3, Source.LOAD)]
)
def test_the_disk_is_read_only_where_that_is_faster(
    tmp_path: Path, encode_tokens_per_s: float | None, source: Source
) -> None:
    """The figures decide where KV comes from; the answer stays the same."""
    first = engine(tmp_path)
    first.warm()
    pace = encode_tokens_per_s and Pace(
        encode_tokens_per_s=encode_tokens_per_s, load_bytes_per_s={Tier.DISK: 1e6}, latency_s={}
    )

    made = engine(tmp_path, pace or None).generate(PROMPT, do_sample=False, max_new_tokens=6)

    assert {each.source for each in made.usage.modules} == {source}
    assert made.token_ids == first.generate(PROMPT, do_sample=False, max_new_tokens=6).token_ids
