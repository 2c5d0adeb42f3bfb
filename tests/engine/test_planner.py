"""Planning remembers, and never serves what is no longer true."""

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
    """The same prompt text again gives the very same plan."""
    assert ENGINE.plan(PROMPT) is ENGINE.plan(PROMPT)


def test_a_replaced_schema_is_planned_anew() -> None:
    """A plan is forgotten with the schema it was made for."""
    before = ENGINE.plan(PROMPT)

    ENGINE.add_schema(SCHEMA.replace("one", "longer"))

    assert ENGINE.plan(PROMPT).num_reused_tokens == before.num_reused_tokens + len("longer") - len("one")


def test_a_file_is_read_every_time(tmp_path: Path) -> None:
    """What a path leads to may change, so its plan is not remembered."""
    path = tmp_path / "prompt.xml"
    path.write_text(PROMPT, encoding="utf-8")
    before = ENGINE.plan(str(path))

    path.write_text(PROMPT.replace("<a/>", "<b/>"), encoding="utf-8")

    assert ENGINE.plan(str(path)).selection.modules != before.selection.modules


def test_few_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many texts come, a bounded number of plans is kept, the latest ones."""
    monkeypatch.setattr(planner, "MAX_REMEMBERED", 2)
    texts = [PROMPT.replace("?", mark) for mark in "1234"]
    plans = [ENGINE.plan(text) for text in texts]

    assert [ENGINE.plan(text) is plan for text, plan in zip(texts[2:], plans[2:], strict=True)] == [True, True]
    assert ENGINE.plan(texts[0]) is not plans[0]
