"""Schemas that fit the model, plans, which the planner caches while they are right, and chat messages, which are prompts."""

import gc
import re
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache import Engine
from promptcache.demo import MODEL_FOLDER
from promptcache.diagnostics import InvalidGeneration, InvalidValue, SchemaError
from promptcache.language import CHAT_SCHEMA, CheckedSchema, Placement, Prompt, Schema, check_schema, module, slot
from promptcache.layout import Level, Origin, check_length, lay_out, run_variants
from promptcache.planning import planner
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.texts import maybe
from promptcache.testing.tiny_model import tiny_model
from promptcache.tokenizer import HubTokenizer, declared_positions
from tests import strategies
from tests.conftest import law_examples
from tests.engine.asking import WAYS, answered, engine_of
from tests.language.test_chat import chats, text_of

SCHEMA = '<schema name="s" context="guaranteed"><module name="a">one</module><module name="b">two</module></schema>'
PROMPT = '<prompt schema="s"><a/>?</prompt>'
BOTH = '<prompt schema="s"><a/><b/>?</prompt>'
ENGINE = engine_of(schema=SCHEMA)


@pytest.fixture(autouse=True)
def _schema() -> None:
    ENGINE.add_schema(SCHEMA)


def test_plans_are_kept_while_they_are_right(tmp_path: Path) -> None:
    """The same prompt text gives the same plan object until its schema is replaced. A file is read every time."""
    path = tmp_path / "prompt.xml"
    path.write_text(PROMPT, encoding="utf-8")
    before = ENGINE.plan(PROMPT)
    assert ENGINE.plan(str(path)).selection.modules == before.selection.modules
    path.write_text(PROMPT.replace("<a/>", "<b/>"), encoding="utf-8")

    assert ENGINE.plan(PROMPT) is before
    assert ENGINE.plan(str(path)).selection.modules != before.selection.modules
    ENGINE.add_schema(SCHEMA.replace("one", "longer"))
    assert ENGINE.plan(PROMPT).num_reused_tokens == before.num_reused_tokens + len("longer") - len("one")


def test_kept_plans_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(schema=SCHEMA)
    monkeypatch.setattr(planner, "MAX_REMEMBERED_BYTES", 500_000)
    texts = [PROMPT.replace("?", f"{number} " + 500 * "long ") for number in range(50)]
    engine.plan(PROMPT)
    tracemalloc.start()
    plans = [weakref.ref(engine.plan(text)) for text in texts]
    gc.collect()
    nbytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert nbytes < 500_000
    assert engine.plan(texts[-1]) is plans[-1]()
    assert plans[0]() is None


@pytest.mark.parametrize(
    ("stated", "own", "repair"),
    [
        ("", None, "first-1"),
        ('repair="first-2"', None, "first-2"),
        ('repair="first-2"', "all", "all"),
        ("", "none", "none"),
    ],
)
def test_the_repair_of_the_engine_comes_last(stated: str, own: str | None, repair: str) -> None:
    """A call's repair goes before that of the schema, and that before the engine's; logits have it as well."""
    engine = engine_of(schema=SCHEMA.replace('name="s"', f'name="s" {stated}'), repair="first-1")

    plan, answer = engine.plan(BOTH, repair=own), engine.generate(BOTH, repair=own, max_new_tokens=1)
    assert str(plan.repair) == answer.repair == repair
    assert len(engine.logits(BOTH, repair=own)) == plan.num_new_tokens
    assert answer.usage.num_repaired_tokens == plan.num_repaired_tokens


@pytest.mark.parametrize(("own", "stated"), [("closed", "fixed"), ("fixed", "closed")])
def test_the_positions_of_the_engine_come_last(own: str, stated: str) -> None:
    """A schema that states its positions is answered as by an engine with them; another one as the engine says."""
    engine, other = (engine_of(schema=SCHEMA, positions=each) for each in (own, stated))
    prompt = PROMPT.replace("<a/>", "<b/>")
    assert engine.plan(prompt).tokens != other.plan(prompt).tokens

    engine.add_schema(SCHEMA.replace('name="s"', f'name="s" positions="{stated}"'))
    assert engine.plan(prompt).tokens == other.plan(prompt).tokens
    assert engine.logits(prompt).allclose(other.logits(prompt))


@pytest.mark.parametrize(
    "repair",
    [
        *("", "some", "first", "first-", "first--1", "first-101%", "first-01", "first-1.5", "All", "attended"),
        *("attended-8-8", 2, b"all", ["all"]),
    ],
)
def test_wrong_repairs_are_refused_everywhere(repair: object) -> None:
    """Every method refuses a value that is no repair, and names those there are. Positions are no option of a request."""
    for call in (ENGINE.plan, ENGINE.logits, ENGINE.reference):
        with pytest.raises(InvalidValue, match=r"none, slots, all, attended-8 or first-16"):
            call(PROMPT, repair=repair)  # type: ignore[operator]
    with pytest.raises(InvalidGeneration, match="positions"):
        ENGINE.generate(PROMPT, positions="fixed")


DEMO = Engine.from_pretrained("demo")


def _codes(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except SchemaError as error:
        return [found.code for found in error.diagnostics]
    return []


@settings(max_examples=law_examples(0.1), deadline=None)
@given(schema=strategies.schemas(), reserve=st.integers(-3, 3), default=maybe(st.sampled_from(("a", "one two three"))))
def test_what_fits_the_model_is_taken(schema: CheckedSchema, reserve: int, default: str | None) -> None:
    """An engine accepts exactly the schemas that fit the tokenizer and the positions of its model folder."""
    positions = declared_positions(MODEL_FOLDER)
    assert positions is not None
    used = lay_out(schema, DEMO.tokenizer).stop
    padding = module("padding", slot("words", 2, default=default), reserve=max(1, positions - used + reserve))
    children = (padding, *schema.source.children)
    padded = check_schema(replace(schema.source, positions=Placement.FIXED, children=children))

    tokenizer = HubTokenizer.from_folder(MODEL_FOLDER)
    expected = _codes(lambda: check_length(layout := lay_out(padded, tokenizer), run_variants(layout), positions))

    assert _codes(lambda: DEMO.add_schema(padded)) == expected


def test_templates_are_their_documents(tmp_path: Path) -> None:
    """A schema from a template has the tokens of the document written out. A context without a template is refused."""
    (tmp_path / "s.xml.j2").write_text('<schema name="s"><module name="m">{{ text }}</module></schema>')
    (tmp_path / "p.xml.j2").write_text('<prompt schema="s"><m/>{{ question }}</prompt>')
    engine = engine_of(schema=Schema("s").module("m", "Low < high."))
    written = engine.plan('<prompt schema="s"><m/>Why?</prompt>').tokens

    engine.add_schema(tmp_path / "s.xml.j2", context={"text": "Low < high."})

    assert engine.plan(Prompt.from_file(tmp_path / "p.xml.j2", context={"question": "Why?"})).tokens == written
    for source in ('<schema name="s"/>', Schema("s")):
        with pytest.raises(SchemaError, match="PC605"):
            engine.add_schema(source, context={})


CHAT = [
    {"role": "system", "content": "You plan trips."},
    {"role": "user", "content": "Where to?"},
    {"role": "assistant", "content": "Miami."},
    {"role": "user", "content": [{"type": "text", "text": "Why "}, {"type": "text", "text": "there?"}]},
]
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6}
CHATTING = Engine(tiny_model(), ByteTokenizer())
CHATTING.add_schema(Schema("empty"))


@given(chats())
@settings(max_examples=law_examples(0.5))
def test_messages_are_the_same_turns_in_xml(chat: list[dict[str, Any]]) -> None:
    """Messages are exact, and have the tokens and positions of the same turns in XML, also if a schema begins them."""
    chat = [*chat, {"role": "user", "content": "Why?"}]
    plan = CHATTING.plan(chat)
    written = CHATTING.plan(Prompt.from_messages("empty", chat).to_xml())
    half = len(chat) // 2
    CHATTING.add_schema(Schema.from_messages("half", chat[:half]))
    cached = CHATTING.plan(Prompt.from_messages("half", chat[half:]))

    assert plan.tokens.used_ids == written.tokens.used_ids == cached.tokens.used_ids
    assert plan.stop == written.stop
    assert plan.level is cached.level is Level.EXACT
    texts = [each for each in plan.new if each.origin is Origin.TEXT]
    assert [CHATTING.tokenizer.detokenize(each.token_ids) for each in texts] == [
        text for each in chat if (text := text_of(each))
    ]


def test_every_method_takes_messages() -> None:
    """Each way of asking gives the answer of `generate`; a batch takes several chats beside other prompts."""
    answers = [answered(CHATTING, CHAT, way, **GREEDY) for way in WAYS]
    batch = CHATTING.generate_batch([Prompt("empty").user("Hi"), tuple(CHAT[:2])], **GREEDY)

    assert len({each.token_ids for each in answers}) == 1
    assert batch[1].token_ids == CHATTING.generate(CHAT[:2], **GREEDY).token_ids
    assert torch.allclose(CHATTING.logits(CHAT), CHATTING.reference(CHAT))
    assert CHATTING.audit(CHAT, max_new_tokens=2).divergence < 1e-9
    assert CHATTING.promote(CHAT) == 0


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
        (lambda: CHATTING.generate(["Hi"]), "messages[0]='Hi' is not a message"),
        (lambda: CHATTING.generate(CHAT[0]), "is not a prompt: "),
        (lambda: CHATTING.generate_batch('<prompt schema="empty"/>'), "use generate() for a single one"),
        (lambda: CHATTING.generate_batch(Prompt("empty")), "use generate() for a single one"),
        (lambda: CHATTING.generate_batch(CHAT), "a list of messages is a single prompt; use generate()"),
        (lambda: CHATTING.generate_batch([CHAT, CHAT[0]]), "a list of messages is a single prompt; use generate()"),
        (lambda: CHATTING.add_schema(CHAT), "Schema.from_messages"),
    ],
)
def test_other_lists_are_refused(call: Callable[[], object], message: str) -> None:
    """A list that is no chat, and a chat where a list of prompts is expected, are refused with a fix."""
    with pytest.raises(InvalidValue, match=re.escape(message)):
        call()
