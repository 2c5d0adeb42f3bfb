"""The planner caches plans, and drops those that are no longer valid."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from promptcache.diagnostics import InvalidValue
from promptcache.engine import Engine
from promptcache.planning import planner
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = '<schema name="s" context="guaranteed"><module name="a">one</module><module name="b">two</module></schema>'
PROMPT = '<prompt schema="s"><a/>?</prompt>'
REPAIRED = """<schema name="r" context="guaranteed" repair="first-2"><module name="a">one</module><module name="b">two</module></schema>"""
BOTH = '<prompt schema="{}"><a/><b/>?</prompt>'
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
    """The memory of cached plans is limited; the latest are kept."""
    monkeypatch.setattr(planner, "MAX_REMEMBERED_BYTES", 10_000)
    texts = [PROMPT.replace("?", mark) for mark in "1234"]
    plans = [ENGINE.plan(text) for text in texts]

    assert [ENGINE.plan(text) is plan for text, plan in zip(texts[2:], plans[2:], strict=True)] == [True, True]
    assert ENGINE.plan(texts[0]) is not plans[0]


def test_long_prompts_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached plans of long prompts take no more memory than the limit allows."""
    engine = Engine(tiny_model(), ByteTokenizer())
    engine.add_schema(SCHEMA)
    monkeypatch.setattr(planner, "MAX_REMEMBERED_BYTES", 500_000)
    texts = [PROMPT.replace("?", f"{number} " + 500 * "long ") for number in range(50)]
    engine.plan(PROMPT)
    tracemalloc.start()
    try:
        for text in texts:
            engine.plan(text)
        gc.collect()
        nbytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert nbytes < 500_000
    assert engine.plan(texts[-1]) is engine.plan(texts[-1])


def test_plans_of_several_repairs_are_kept_apart() -> None:
    """The same text with another repair is another plan, and each is cached."""
    prompt = BOTH.format("s")
    plans = {repair: ENGINE.plan(prompt, repair=repair) for repair in (None, "none", "first-1", "all")}

    assert {repair: str(plan.repair) for repair, plan in plans.items()} == {
        None: "slots",
        "none": "none",
        "first-1": "first-1",
        "all": "all",
    }
    assert [plan.num_repaired_tokens for plan in plans.values()] == [0, 0, 1, len("\ntwo")]
    assert all(ENGINE.plan(prompt, repair=repair) is plan for repair, plan in plans.items())


def _answers(engine: Engine) -> dict[str, Callable[..., str]]:
    """Return every method that takes a repair, as a function that says which one served."""
    greedy: dict[str, Any] = {"max_new_tokens": 1, "do_sample": False}

    def of_stream(prompt: str, **options: Any) -> str:
        with engine.stream(prompt, **greedy, **options) as stream:
            list(stream)
        assert stream.completion is not None
        return stream.completion.repair

    def of_logits(prompt: str, **options: Any) -> str:
        repairs = ("slots", "first-1", "first-2", "all")
        found = engine.logits(prompt, **options)
        assert torch.allclose(found, engine.reference(prompt, **options))
        return next(repair for repair in repairs if len(found) == engine.plan(prompt, repair=repair).num_new_tokens)

    return {
        "plan": lambda prompt, **options: str(engine.plan(prompt, **options).repair),
        "generate": lambda prompt, **options: engine.generate(prompt, **greedy, **options).repair,
        "generate_batch": lambda prompt, **options: engine.generate_batch([prompt], **greedy, **options)[0].repair,
        "stream": of_stream,
        "logits": of_logits,
    }


@pytest.mark.parametrize("method", ["plan", "generate", "generate_batch", "stream", "logits"])
def test_the_repair_of_the_call_comes_first(method: str) -> None:
    """A call's repair goes before that of the schema, and that before the engine's; the default is "slots"."""
    engine, plain = (Engine(tiny_model(), ByteTokenizer(), repair=repair) for repair in ("first-1", "slots"))
    for each in (engine, plain):
        each.add_schema(SCHEMA)
        each.add_schema(REPAIRED)
    served, served_plain = _answers(engine)[method], _answers(plain)[method]

    assert served_plain(BOTH.format("s")) == "slots"
    assert served(BOTH.format("s")) == "first-1"
    assert served(BOTH.format("r")) == "first-2"
    assert served(BOTH.format("r"), repair="all") == "all"
    assert served(BOTH.format("s"), repair="first-2") == "first-2"


def test_repaired_tokens_are_counted() -> None:
    """The answer says how many stored tokens were computed again; they are new tokens."""
    usage = ENGINE.generate(BOTH.format("s"), repair="all", max_new_tokens=1, do_sample=False).usage

    assert usage.num_repaired_tokens == len("\ntwo")
    assert usage.num_new_tokens == len("\ntwo") + len("?")


@pytest.mark.parametrize("repair", ["most", "first-", "first-101%", "", 2, b"all", ["all"]])
def test_wrong_repairs_are_refused_everywhere(repair: object) -> None:
    """Every method refuses a value that is no repair, and names those there are."""
    for call in (ENGINE.plan, ENGINE.logits, ENGINE.reference):
        with pytest.raises(InvalidValue, match=r"none, slots, all, first-16"):
            call(PROMPT, repair=repair)  # type: ignore[operator]
