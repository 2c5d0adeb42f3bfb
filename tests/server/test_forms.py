"""Answers with a form over HTTP, for OpenAI's unchanged client: JSON of a schema, and calls of tools."""

import gc
import json
import threading
import weakref
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from pydantic import BaseModel

from promptcache.server import create_app
from promptcache.structured import CompiledGrammar, GrammarCache
from tests.engine.calling import CALLED, HERMES, QUESTION, RESULT, TOOLS, engine_of
from tests.server.conftest import CHATS, Served, running, wait_until

CHAT: dict[str, Any] = {"model": "demo", "messages": [QUESTION], "temperature": 0}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


TRIP = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}


class Trip(BaseModel):
    """What `parse` makes of an answer."""

    days: bool


def test_json_schema(own_server: Served) -> None:
    """The answer has the schema, whole and as a stream, in chats and completions."""
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
    client = own_server.openai()
    made = client.chat.completions.create(**CHAT, response_format=form)
    jsonschema.validate(json.loads(made.choices[0].message.content), SCHEMA)
    assert made.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(**CHAT, response_format=form, stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == made.choices[0].message.content
    continued = client.completions.create(
        model="demo", prompt="A trip:", extra_body={"response_format": form}, temperature=0
    )
    jsonschema.validate(json.loads(continued.choices[0].text), SCHEMA)


def test_json_object_and_parse(own_server: Served) -> None:
    """`json_object` gives an object, and OpenAI's `parse` gives the type."""
    made = own_server.openai().chat.completions.create(
        **CHAT, response_format={"type": "json_object"}, max_tokens=16, stop="}", logprobs=True
    )
    assert str(made.choices[0].message.content).lstrip().startswith("{")
    parsed = own_server.openai().chat.completions.parse(**CHAT, response_format=Trip)
    assert isinstance(parsed.choices[0].message.parsed, Trip)


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_cuts_a_call(tools: Served, stream: bool) -> None:
    """What there is of it is text, whole and as a stream, and the finish reason says so, in both APIs."""
    client = tools.openai()
    choice = {"type": "function", "function": {"name": "weather"}}
    asked = {**CHAT, "tools": TOOLS, "tool_choice": choice, "max_tokens": 28, "stream": stream}
    made = client.chat.completions.create(**asked)
    chunks = [*made] if stream else [made]
    parts = [each.choices[0].delta if stream else each.choices[0].message for each in chunks]
    assert not any(part.tool_calls for part in parts)
    assert "weather" in "".join(part.content or "" for part in parts)
    assert chunks[-1].choices[0].finish_reason == "length"
    functions = [{"type": "function", **TOOLS[0]["function"]}]
    body = {"model": "demo", "input": "How warm?", "tools": functions, "tool_choice": "required", "temperature": 0}
    response = tools.post("/v1/responses", {**body, "max_output_tokens": 28}).json()
    (item,) = response["output"]
    assert (response["status"], item["type"], item["status"]) == ("incomplete", "message", "incomplete")


def test_tools_with_a_format(tools: Served) -> None:
    """An answer is a call or has the format, in chats and responses; OpenAI's `parse` takes both."""
    client = tools.openai()
    one = {"parallel_tool_calls": False}
    asked = {**CHAT, **one, "tools": TOOLS, "response_format": TRIP}
    free, called = (
        client.chat.completions.create(**asked, **each).choices[0].message for each in ({}, {"tool_choice": "time"})
    )
    if not free.tool_calls:
        jsonschema.validate(json.loads(free.content), SCHEMA)
    assert [each.function.name for each in called.tool_calls] == ["time"]
    functions = [{"type": "function", **each["function"]} for each in TOOLS]
    text = {"format": {"type": "json_schema", "name": "trip", "schema": SCHEMA}}
    response = client.responses.create(
        model="demo", input=QUESTION["content"], tools=functions, text=text, temperature=0, **one
    )
    if any(item.type == "message" for item in response.output):
        jsonschema.validate(json.loads(response.output_text), SCHEMA)
    strict = [{**each, "function": {**each["function"], "strict": True}} for each in TOOLS]
    parsed = client.chat.completions.parse(**CHAT, **one, tools=strict, response_format=Trip)
    assert parsed.choices[0].message.tool_calls or isinstance(parsed.choices[0].message.parsed, Trip)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, weakref.ref[CompiledGrammar]]]:
    """The formats that are compiled, each with the name of the thread."""
    made, compile_one = [], GrammarCache.compiled

    def noted(cache: GrammarCache, grammar: str) -> CompiledGrammar:
        made.append((threading.current_thread().name, None))
        found = compile_one(cache, grammar)
        made[-1] = (made[-1][0], weakref.ref(found))
        return found

    monkeypatch.setattr(GrammarCache, "compiled", noted)
    return made


def test_formats_are_compiled_outside_of_the_loop(own_server: Served, compiled: list[Any]) -> None:
    """A format that takes long stops no other client: neither the event loop nor the thread of the steps compiles it."""
    wrong = {"type": "json_schema", "json_schema": {"name": "trip", "schema": {"not": {}}}}
    with own_server.http() as client:
        assert client.post(CHATS, json={**CHAT, "response_format": TRIP}).status_code == 200
        for path in (CHATS, "/v1/plan"):
            refused = client.post(path, json={**CHAT, "response_format": wrong})
            assert refused.json()["error"]["param"] == "response_format"
    assert compiled
    assert all(thread.startswith("AnyIO worker thread") for thread, _ in compiled)


def test_answers_that_have_ended_hold_no_format(own_server: Served, compiled: list[Any]) -> None:
    """The memory of a large format is free once its answers have ended, and others have taken its place in the cache."""
    gc.disable()
    try:
        with own_server.http() as client:
            for character in "abcdef":
                form = {"name": "text", "schema": {"const": character * 50_000}}
                asked = {**CHAT, "max_tokens": 2, "response_format": {"type": "json_schema", "json_schema": form}}
                assert client.post(CHATS, json=asked).status_code == 200
        assert len(compiled) == 6
        wait_until(lambda: all(form() is None for _, form in compiled[:4]), timeout_s=10)
    finally:
        gc.enable()


DOCUMENT = '<prompt schema="agent"><tools><weather/></tools><clock/><user>How warm is it in Oslo?</user></prompt>'


def test_a_document_goes_on_with_messages(tools: Served) -> None:
    """Calls and results behind a prompt document have the tokens of the same chat over its modules."""
    use = {"prompt_cache": {"use": ["tools/weather", "clock"]}}
    chat = {"model": "demo@agent", "messages": [*CALLED, RESULT], "tools": TOOLS, **use}
    document = {"prompt": DOCUMENT, "messages": [*CALLED, RESULT][1:], "tools": TOOLS}
    expected, made = (tools.post("/v1/plan", each).json() for each in (chat, document))
    wrong = tools.post("/v1/prompts", {"prompt": DOCUMENT, "messages": [{"role": "tool"}]})

    assert (made["next_position"], made["num_new_tokens"]) == (expected["next_position"], expected["num_new_tokens"])
    assert made["num_reused_tokens"] == expected["num_reused_tokens"] > 50
    assert tools.post("/v1/check", {"document": DOCUMENT}).json()["tools"] == TOOLS
    assert (wrong.status_code, "messages[0].content" in wrong.text) == (400, True)


def test_calls_are_whole_or_a_stream(tools: Served) -> None:
    """A tool that must be called is called, with arguments of its schema; a stream has the same call, and no text of it."""
    choice = {"type": "function", "function": {"name": "weather"}}
    asked: dict[str, Any] = {**CHAT, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    whole = tools.openai().chat.completions.create(**asked).choices[0]
    chunks = [*tools.openai().chat.completions.create(**asked, stream=True)]
    deltas = [each.choices[0].delta for each in chunks]
    (call,) = [call for each in deltas for call in each.tool_calls or []]
    (made,) = whole.message.tool_calls
    assert (whole.message.content, whole.finish_reason) == (None, "tool_calls")
    assert (made.type, made.function.name) == ("function", "weather")
    assert json.loads(made.function.arguments) in ({"city": "Oslo"}, {"city": "Rome"})
    assert made.id.startswith("call_")
    assert call.id.startswith("call_")
    assert not any(each.content for each in deltas)
    assert (call.index, call.type, call.function.name) == (0, "function", "weather")
    assert call.function.arguments == made.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_reasoning_effort_reaches_the_template() -> None:
    """It is the variable `reasoning_effort`, of chats and responses."""
    effort = HERMES.replace("{% if tools or", "{{ reasoning_effort or 'medium' }}{% if tools or", 1)
    for served in running(create_app(engine_of(effort)[0])):
        client = served.openai()
        sizes = []
        for which in ("low", "high and long and longest"):
            chat = client.chat.completions.create(**CHAT, reasoning_effort=which, max_tokens=1)
            asked = {"model": "demo", "input": QUESTION["content"], "max_output_tokens": 1}
            response = client.responses.create(**asked, reasoning={"effort": which})
            sizes.append(chat.usage.prompt_tokens)
            assert (response.reasoning.effort, response.usage.input_tokens) == (which, sizes[-1])
        assert sizes[0] < sizes[1]
