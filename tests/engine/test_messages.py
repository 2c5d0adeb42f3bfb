"""Chat messages are prompts: with the tokens of the same turns in XML, and of the chat template."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from promptcache.diagnostics import InvalidValue, SchemaError
from promptcache.engine import Engine
from promptcache.language import CHAT_SCHEMA, Prompt, Schema
from promptcache.layout import Level, Origin
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.engine.asking import WAYS, answered
from tests.language.test_chat import chats, text_of

CHAT = [
    {"role": "system", "content": "You plan trips."},
    {"role": "user", "content": "Where to?"},
    {"role": "assistant", "content": "Miami."},
    {"role": "user", "content": [{"type": "text", "text": "Why "}, {"type": "text", "text": "there?"}]},
]
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6}
ENGINE = Engine(tiny_model(), ByteTokenizer())
ENGINE.add_schema(Schema("empty"))


@given(chats())
@settings(max_examples=law_examples(0.5))
def test_messages_are_the_same_turns_in_xml(chat: list[dict[str, Any]]) -> None:
    """Messages have the tokens and positions of the same turns in a prompt of an empty schema; their text is exact.

    So it is if a schema has their beginning.
    """
    chat = [*chat, {"role": "user", "content": "Why?"}]
    plan = ENGINE.plan(chat)
    written = ENGINE.plan(Prompt.from_messages("empty", chat).to_xml())
    half = len(chat) // 2
    ENGINE.add_schema(Schema.from_messages("half", chat[:half]))
    cached = ENGINE.plan(Prompt.from_messages("half", chat[half:]))

    assert plan.tokens.used_ids == written.tokens.used_ids == cached.tokens.used_ids
    assert plan.stop == written.stop
    assert plan.level is cached.level is Level.EXACT
    texts = [each for each in plan.new if each.origin is Origin.TEXT]
    assert [ENGINE.tokenizer.detokenize(each.token_ids) for each in texts] == [
        text for each in chat if (text := text_of(each))
    ]


def test_every_method_takes_messages() -> None:
    """Each way of asking gives the answer of `generate`; a batch takes several chats beside other prompts."""
    answers = [answered(ENGINE, CHAT, way, **GREEDY) for way in WAYS]
    batch = ENGINE.generate_batch([Prompt("empty").user("Hi"), tuple(CHAT[:2])], **GREEDY)

    assert len({each.token_ids for each in answers}) == 1
    assert batch[1].token_ids == ENGINE.generate(CHAT[:2], **GREEDY).token_ids
    assert torch.allclose(ENGINE.logits(CHAT), ENGINE.reference(CHAT))
    assert ENGINE.audit(CHAT, max_new_tokens=2).divergence < 1e-9
    assert ENGINE.promote(CHAT) == 0


def test_the_empty_schema_is_not_among_those_of_the_user() -> None:
    """The schema of messages is not listed, and no schema of a user can have its name."""
    engine = Engine(tiny_model(), ByteTokenizer())
    before = engine.plan(CHAT)

    assert before.selection.schema.name == CHAT_SCHEMA
    assert engine.plan(Prompt.from_messages(CHAT_SCHEMA, CHAT)).tokens == before.tokens
    assert dict(engine.schemas) == {}
    assert engine.warm() == ()
    with pytest.raises(SchemaError, match="cannot be the name of a schema"):
        engine.add_schema(Schema(CHAT_SCHEMA).text("Mine."))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ENGINE.generate(["Hi"]), "messages[0]='Hi' is not a message"),
        (lambda: ENGINE.generate(CHAT[0]), "is not a prompt: "),
        (lambda: ENGINE.generate_batch('<prompt schema="empty"/>'), "use generate() for a single one"),
        (lambda: ENGINE.generate_batch(Prompt("empty")), "use generate() for a single one"),
        (lambda: ENGINE.generate_batch(CHAT), "a list of messages is a single prompt; use generate()"),
        (lambda: ENGINE.generate_batch([CHAT, CHAT[0]]), "a list of messages is a single prompt; use generate()"),
        (lambda: ENGINE.add_schema(CHAT), "Schema.from_messages"),
    ],
)
def test_other_lists_are_refused(call: Callable[[], object], message: str) -> None:
    """A list that is no chat, and a chat where a list of prompts is expected, are refused with a fix."""
    with pytest.raises(InvalidValue, match=re.escape(message)):
        call()
