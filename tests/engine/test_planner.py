"""The planner caches plans, and drops those that are no longer valid."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from promptcache.diagnostics import InvalidGeneration, InvalidValue
from promptcache.planning import planner
from tests.engine.asking import answered, engine_of

SCHEMA = '<schema name="s" context="guaranteed"><module name="a">one</module><module name="b">two</module></schema>'
PROMPT = '<prompt schema="s"><a/>?</prompt>'
REPAIRED = """<schema name="r" context="guaranteed" repair="first-2"><module name="a">one</module><module name="b">two</module></schema>"""
BOTH = '<prompt schema="{}"><a/><b/>?</prompt>'
ENGINE = engine_of(schema=SCHEMA)
ONE = {"max_new_tokens": 1, "do_sample": False}


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
    engine = engine_of(schema=SCHEMA)
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


def test_the_repair_of_the_engine_comes_last() -> None:
    """A call's repair goes before that of the schema, and that before the engine's; logits have it as well."""
    engine = engine_of(schema=SCHEMA, repair="first-1")
    engine.add_schema(REPAIRED)

    for name, own, repair in (
        ("s", None, "first-1"),
        ("r", None, "first-2"),
        ("r", "all", "all"),
        ("s", "none", "none"),
    ):
        prompt = BOTH.format(name)
        assert (
            str(engine.plan(prompt, repair=own).repair) == answered(engine, prompt, **ONE, repair=own).repair == repair
        )
        assert len(engine.logits(prompt, repair=own)) == engine.plan(prompt, repair=repair).num_new_tokens


@pytest.mark.parametrize(("own", "stated"), [("closed", "fixed"), ("fixed", "closed")])
def test_the_positions_of_the_engine_come_last(own: str, stated: str) -> None:
    """A schema that states its positions is answered as by an engine with them; another one as the engine says."""
    engine, other = (engine_of(schema=SCHEMA, positions=each) for each in (own, stated))
    prompt = PROMPT.replace("<a/>", "<b/>")
    assert engine.plan(prompt).tokens != other.plan(prompt).tokens

    engine.add_schema(SCHEMA.replace('name="s"', f'name="s" positions="{stated}"'))
    assert engine.plan(prompt).tokens == other.plan(prompt).tokens
    assert engine.logits(prompt).allclose(other.logits(prompt))


def test_other_positions_are_refused() -> None:
    """The error names those that there are, and a request has none of its own."""
    with pytest.raises(InvalidValue, match="closed"):
        engine_of(positions="open")
    with pytest.raises(InvalidGeneration, match="positions"):
        ENGINE.generate(PROMPT, positions="fixed")


def test_repaired_tokens_are_counted() -> None:
    """The answer says how many stored tokens were computed again; they are new tokens."""
    usage = ENGINE.generate(BOTH.format("s"), repair="all", **ONE).usage

    assert usage.num_repaired_tokens == len("\ntwo")
    assert usage.num_new_tokens == len("\ntwo") + len("?")


@pytest.mark.parametrize("repair", ["most", "first-", "first-101%", "", 2, b"all", ["all"]])
def test_wrong_repairs_are_refused_everywhere(repair: object) -> None:
    """Every method refuses a value that is no repair, and names those there are."""
    for call in (ENGINE.plan, ENGINE.logits, ENGINE.reference):
        with pytest.raises(InvalidValue, match=r"none, slots, all, attended-8 or first-16"):
            call(PROMPT, repair=repair)  # type: ignore[operator]
