"""A call chooses where cached text stands, and its KV lasts as long as that of the schema."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
import torch

from promptcache.diagnostics import InvalidValue
from promptcache.engine import Engine
from promptcache.language import Prompt
from promptcache.runtime import Completion
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = """<schema name="s" context="guaranteed">Begin.<module name="a">The first text.</module><module name="b">The second text.</module>
<module name="c">The third text.</module></schema>"""
PROMPT = '<prompt schema="s"><a/><c/>Go on.</prompt>'
GREEDY = {"max_new_tokens": 8, "do_sample": False}


def engine_with(positions: str, schema: str = SCHEMA) -> Engine:
    engine = Engine(tiny_model(), ByteTokenizer(), positions=positions)
    engine.add_schema(schema)
    return engine


def answer_of_service(engine: Engine, **settings: str) -> tuple[int, ...]:
    service, heard = engine.service(), queue.Queue[Any]()
    service.submit(PROMPT, heard.put, **settings, **GREEDY)
    while not isinstance(item := heard.get(timeout=60), Completion):
        assert not isinstance(item, BaseException)
    service.close()
    return item.token_ids


@pytest.mark.parametrize(("own", "asked"), [("closed", "fixed"), ("fixed", "closed")])
def test_a_call_answers_like_an_engine_with_these_positions(own: str, asked: str) -> None:
    """All ways to ask give the plan, the tokens and the logits of an engine whose setting this is."""
    engine, other = engine_with(own), engine_with(asked)

    assert engine.plan(PROMPT, positions=asked).tokens == other.plan(PROMPT).tokens
    assert engine.plan(PROMPT).tokens != other.plan(PROMPT).tokens
    expected = other.generate(PROMPT, **GREEDY).token_ids
    assert engine.generate(PROMPT, positions=asked, **GREEDY).token_ids == expected
    assert [each.token_ids for each in engine.generate_batch([PROMPT], positions=asked, **GREEDY)] == [expected]
    stream = engine.stream(PROMPT, positions=asked, **GREEDY)
    assert "".join(stream) == other.generate(PROMPT, **GREEDY).text
    logits = other.logits(PROMPT)
    assert engine.logits(PROMPT, positions=asked).allclose(logits)
    assert engine.logits_batch([PROMPT], positions=asked)[0].allclose(logits)
    assert engine.reference(PROMPT, positions=asked).allclose(logits)
    assert engine.score(PROMPT, ["a"], positions=asked)[0].logprob == pytest.approx(
        other.score(PROMPT, ["a"])[0].logprob
    )
    with torch.no_grad():
        linked = engine.model.hf(**engine.link(PROMPT, positions=asked)).logits[0]
    assert linked.allclose(logits[-1:])
    assert answer_of_service(engine, positions=asked) == answer_of_service(other) == expected
    assert engine.plan(PROMPT).tokens == engine_with(own).plan(PROMPT).tokens  # calls without it are as before


def test_a_chat_has_these_positions_for_all_answers(tmp_path: Path) -> None:
    """A chat, one that it forks, and one that is saved and loaded answer like an engine with these positions."""
    engine, other = engine_with("closed"), engine_with("fixed")
    prompt = Prompt("s").use("a").use("c")
    chat, expected = engine.chat(prompt, positions="fixed"), other.chat(prompt)
    for text in ("One?", "Two?"):
        assert chat.say(text, **GREEDY).plan.tokens == expected.say(text, **GREEDY).plan.tokens
    chat.save(tmp_path / "chat.json")
    last = expected.say("Three?", **GREEDY)

    for continued in (chat.fork(), engine.load_chat(tmp_path / "chat.json")):
        assert continued.say("Three?", **GREEDY).token_ids == last.token_ids
    assert engine.chat(prompt).say("One?", **GREEDY).plan.tokens != other.chat(prompt).say("One?").plan.tokens
    with pytest.raises(InvalidValue, match="positions"):
        engine.chat(prompt, positions="open")


def test_kv_is_kept_until_the_schema_is_replaced() -> None:
    """The second call encodes nothing; a replaced or removed schema leaves no KV, and is not answered from."""
    engine = engine_with("closed")
    engine.generate(PROMPT, positions="fixed", **GREEDY)
    again = engine.generate(PROMPT, positions="fixed", **GREEDY)
    assert again.usage.num_encoded_tokens == 0
    assert engine.plan(PROMPT, positions="fixed") is engine.plan(PROMPT, positions="fixed")

    changed = SCHEMA.replace("third", "last")
    engine.add_schema(changed)
    expected = engine_with("fixed", changed).plan(PROMPT).tokens
    assert engine.plan(PROMPT, positions="fixed").tokens == expected

    engine.generate(PROMPT, positions="fixed", **GREEDY)
    engine.remove_schema("s")
    assert not [*engine.store.keys()]


def test_other_values_are_refused() -> None:
    """A call with other positions is an error that names those that there are."""
    with pytest.raises(InvalidValue, match="closed"):
        engine_with("closed").generate(PROMPT, positions="open")
