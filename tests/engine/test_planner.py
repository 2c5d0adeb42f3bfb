"""The planner caches plans, and drops those that are no longer valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcache.engine import Engine
from promptcache.runtime import planner
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = '<schema name="s"><module name="a">one</module><module name="b">two</module></schema>'
PROMPT = '<prompt schema="s"><a/>?</prompt>'
ENGINE = Engine(tiny_model(), ByteTokenizer())


@pytest.fixture(autouse=True)
def _schema() -> None:
    """Every test starts from the same schema."""
    ENGINE.add_schema(SCHEMA)


def test_the_same_text_is_planned_once() -> None:
    """The same prompt text gives the same plan object."""
    assert ENGINE.plan(PROMPT) is ENGINE.plan(PROMPT)


def test_a_replaced_schema_is_planned_anew() -> None:
    """A cached plan is dropped with its schema."""
    before = ENGINE.plan(PROMPT)

    ENGINE.add_schema(SCHEMA.replace("one", "longer"))

    assert ENGINE.plan(PROMPT).num_reused_tokens == before.num_reused_tokens + len("longer") - len("one")


def test_a_file_is_read_every_time(tmp_path: Path) -> None:
    """The plan of a path is not cached, because the file may change."""
    path = tmp_path / "prompt.xml"
    path.write_text(PROMPT, encoding="utf-8")
    before = ENGINE.plan(str(path))

    path.write_text(PROMPT.replace("<a/>", "<b/>"), encoding="utf-8")

    assert ENGINE.plan(str(path)).selection.modules != before.selection.modules


def test_few_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of cached plans is limited; the latest are kept."""
    monkeypatch.setattr(planner, "MAX_REMEMBERED", 2)
    texts = [PROMPT.replace("?", mark) for mark in "1234"]
    plans = [ENGINE.plan(text) for text in texts]

    assert [ENGINE.plan(text) is plan for text, plan in zip(texts[2:], plans[2:], strict=True)] == [True, True]
    assert ENGINE.plan(texts[0]) is not plans[0]
