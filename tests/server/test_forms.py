"""Answers with a form over HTTP, for OpenAI's unchanged client: JSON of a schema, and calls of tools."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import openai
import pytest
from pydantic import BaseModel

from promptcache import Prompt, Schema
from promptcache.language import check_schema, resolve_prompt, tool_definitions
from promptcache.server import ServerSettings, create_app
from promptcache.structured import CompiledGrammar, GrammarCache
from tests.engine.calling import CALLED, HERMES, QUESTION, RESULT, TOOLS, engine_of, tool
from tests.server.conftest import Served, running, wait_until

CHAT: dict[str, Any] = {"model": "demo", "messages": [QUESTION], "temperature": 0}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


SET_TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"a": {"uniqueItems": True}}}},
}


class Trip(BaseModel):
    """What `parse` makes of an answer."""

    days: bool


def test_json_schema(own_server: Served) -> None:
    """The answer has the schema, whole and as a stream, in chats and completions."""
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
    client = own_server.openai()
    made = client.chat.completions.create(**CHAT, response_format=form)  # type: ignore[call-overload]
    jsonschema.validate(json.loads(made.choices[0].message.content), SCHEMA)
    assert made.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(**CHAT, response_format=form, stream=True)  # type: ignore[call-overload]
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


def test_forced_tool(tools: Served) -> None:
    """A tool that must be called is called, with arguments of its schema."""
    choice = {"type": "function", "function": {"name": "weather"}}
    made = tools.openai().chat.completions.create(**CHAT, tools=TOOLS, tool_choice=choice)  # type: ignore[call-overload]
    message = made.choices[0].message
    (call,) = message.tool_calls
    assert (message.content, made.choices[0].finish_reason) == (None, "tool_calls")
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) in ({"city": "Oslo"}, {"city": "Rome"})
    assert call.id.startswith("call_")


def test_stream_of_calls(tools: Served) -> None:
    """A stream has the calls of the whole answer, and no text of them."""
    whole = tools.openai().chat.completions.create(
        **CHAT, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )  # type: ignore[call-overload]
    chunks = [
        *tools.openai().chat.completions.create(
            **CHAT, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, stream=True
        )  # type: ignore[call-overload]
    ]
    deltas = [each.choices[0].delta for each in chunks]
    call, *arguments = [call for each in deltas for call in each.tool_calls or []]
    assert not any(each.content for each in deltas)
    assert {each.index for each in (call, *arguments)} == {0}
    assert call.id.startswith("call_")
    assert (call.type, call.function.arguments) == ("function", "")
    assert call.function.name == whole.choices[0].message.tool_calls[0].function.name
    assert len(arguments) > 1 or call.function.name == "time"
    assert {(each.id, each.function.name) for each in arguments} == {(None, None)}
    written = "".join(each.function.arguments for each in arguments)
    assert written == whole.choices[0].message.tool_calls[0].function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_cuts_a_call(tools: Served, stream: bool) -> None:
    """The arguments end where the answer ends, whole and as a stream, and the finish reason says so, in both APIs."""
    client: Any = tools.openai()
    asked = {**CHAT, "tools": TOOLS, "max_tokens": 28, "stream": stream}
    made = client.chat.completions.create(**asked, tool_choice={"type": "function", "function": {"name": "weather"}})
    chunks = [*made] if stream else []
    finish = (chunks[-1] if stream else made).choices[0].finish_reason
    if stream:
        calls = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or []]
    else:
        calls = made.choices[0].message.tool_calls
    arguments = "".join(each.function.arguments for each in calls)
    assert (finish, calls[0].function.name) == ("length", "weather")
    assert '{"city": "Oslo"}'.startswith(arguments) or '{"city": "Rome"}'.startswith(arguments)
    with tools.http() as http:
        functions = [{"type": "function", **TOOLS[0]["function"]}]
        body = {
            "model": "demo",
            "input": "How warm?",
            "tools": functions,
            "tool_choice": "required",
            "max_output_tokens": 28,
            "temperature": 0,
        }
        response = http.post("/v1/responses", json=body).json()
    assert [response["status"], *(response["output"][0][name] for name in ("type", "status"))] == [
        "incomplete",
        "function_call",
        "incomplete",
    ]


def test_tools_with_a_format(tools: Served) -> None:
    """An answer is a call or has the format, in chats and responses; OpenAI's `parse` takes both."""
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
    client: Any = tools.openai()
    one = {"parallel_tool_calls": False}
    asked = {**CHAT, **one, "tools": TOOLS, "response_format": form}
    made = [
        client.chat.completions.create(**asked, **each).choices[0].message for each in ({}, {"tool_choice": "time"})
    ]
    if not made[0].tool_calls:
        jsonschema.validate(json.loads(made[0].content), SCHEMA)
    assert [each.function.name for each in made[1].tool_calls] == ["time"]
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


def test_results_of_tools(tools: Served) -> None:
    """A conversation with calls and results is answered."""
    made = tools.openai().chat.completions.create(
        model="demo", messages=[*CALLED, RESULT], tools=TOOLS, max_tokens=4, temperature=0
    )  # type: ignore[call-overload]
    assert made.usage.prompt_tokens > 100
    assert made.choices[0].message.content is not None


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"tools": [tool("f"), tool("f")]}, "tools", "two tools with the name 'f'"),
        ({"tools": TOOLS, "tool_choice": "other"}, "tool_choice", "names 'other', which is none of the tools"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format",
            "Unimplemented keys",
        ),
        (
            {"tools": [tool("f"), SET_TOOL], "tool_choice": "required"},
            "tools",
            "the parameters of 'weather' cannot be used: Unimplemented keys",
        ),
    ],
)
def test_what_is_not_possible_is_refused(tools: Served, changes: dict[str, Any], param: str | None, words: str) -> None:
    """The error names the field and the reason."""
    with pytest.raises(openai.BadRequestError) as found:
        tools.openai().chat.completions.create(**CHAT, **changes)
    assert words in found.value.message
    assert found.value.param == param


def test_formats_are_compiled_outside_of_the_loop(own_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that takes long stops no other client: neither the event loop nor the thread of the steps compiles it."""
    threads, compiled = set[str](), GrammarCache.compiled

    def noted(cache: GrammarCache, grammar: str) -> CompiledGrammar:
        threads.add(threading.current_thread().name)
        return compiled(cache, grammar)

    monkeypatch.setattr(GrammarCache, "compiled", noted)
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
    wrong = {"type": "json_schema", "json_schema": {"name": "trip", "schema": {"not": {}}}}
    with own_server.http() as client:
        assert client.post("/v1/chat/completions", json={**CHAT, "response_format": form}).status_code == 200
        for path in ("/v1/chat/completions", "/v1/plan"):
            refused = client.post(path, json={**CHAT, "response_format": wrong})
            assert refused.json()["error"]["param"] == "response_format"
    assert threads
    assert all(each.startswith("AnyIO worker thread") for each in threads)


def test_answers_that_have_ended_hold_no_format(own_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a large format is free once its answers have ended, and others have taken its place in the cache."""
    made, compiled = list[weakref.ref[CompiledGrammar]](), GrammarCache.compiled

    def noted(cache: GrammarCache, grammar: str) -> CompiledGrammar:
        found = compiled(cache, grammar)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(GrammarCache, "compiled", noted)
    gc.disable()
    try:
        with own_server.http() as client:
            for character in "abcdef":
                form = {"name": "text", "schema": {"const": character * 50_000}}
                asked = {**CHAT, "max_tokens": 2, "response_format": {"type": "json_schema", "json_schema": form}}
                assert client.post("/v1/chat/completions", json=asked).status_code == 200
        assert len(made) == 6
        wait_until(lambda: all(each() is None for each in made[:4]), timeout_s=10)
    finally:
        gc.enable()


def test_a_model_without_tools_says_so(own_server: Served) -> None:
    """The template of the demo model writes no tools."""
    with pytest.raises(openai.BadRequestError, match="the chat template of this model writes no tools"):
        own_server.openai().chat.completions.create(**CHAT, tools=TOOLS)  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError, match="'tools' need a chat"):
        own_server.openai().completions.create(model="demo", prompt="x", extra_body={"tools": TOOLS})


def test_reasoning_effort_is_for_templates_that_read_it() -> None:
    """It reaches the template, and a model whose template does not read it refuses it by name."""
    effort = HERMES.replace("{% if tools or", "{{ reasoning_effort or 'medium' }}{% if tools or", 1)
    for served in running(create_app(engine_of(effort)[0], ServerSettings(model="demo"))):
        sizes = [
            served.openai().chat.completions.create(**CHAT, reasoning_effort=each, max_tokens=1).usage.prompt_tokens
            for each in ("low", "high and long and longest")
        ]
        assert sizes[0] < sizes[1]
    for served in running(create_app(engine_of(HERMES)[0], ServerSettings(model="demo"))):
        with pytest.raises(openai.BadRequestError, match="does not read reasoning_effort"):
            served.openai().chat.completions.create(**CHAT, reasoning_effort="low")


DOCUMENT = '<prompt schema="agent"><tools><weather/></tools><clock/><user>How warm is it in Oslo?</user></prompt>'


def test_a_document_goes_on_with_messages(tools: Served) -> None:
    """Calls and results behind a prompt document have the tokens of the same chat over its modules."""
    use = {"prompt_cache": {"use": ["tools/weather", "clock"]}}
    chat = {"model": "demo@agent", "messages": [*CALLED, RESULT], "tools": TOOLS, **use}
    document = {"prompt": DOCUMENT, "messages": [*CALLED, RESULT][1:], "tools": TOOLS}
    with tools.http() as client:
        expected, made = (client.post("/v1/plan", json=each).json() for each in (chat, document))
        found = client.post("/v1/check", json={"document": DOCUMENT}).json()["tools"]
        wrong = client.post("/v1/prompts", json={"prompt": DOCUMENT, "messages": [{"role": "tool"}]})

    assert (made["next_position"], made["num_new_tokens"]) == (expected["next_position"], expected["num_new_tokens"])
    assert made["num_reused_tokens"] == expected["num_reused_tokens"] > 50
    assert found == TOOLS
    assert (wrong.status_code, "messages[0].content" in wrong.text) == (400, True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        (
            'Call {"type": "function", "function": {"name": "f"}} or\n{ "type" : "function", "function": {"name": "g"}}.',
            ["f", "g"],
        ),
        ('{"type": "function", "function": {}} {"type": "function", "function": {"name": "f"}}', ["f"]),
        ('{"type": "function", "function": {"name": "f"', []),
        ('{"type": "function", ' * 100_000, []),
    ],
)
def test_definitions_in_a_text_are_found(text: str, names: list[str]) -> None:
    """Each object that is a tool is found, whatever is around it; JSON that is not complete ends the search."""
    schema = Schema("agent").module("a", f"Tools: {text}")
    selection = resolve_prompt(Prompt("agent").use("a"), check_schema(schema))
    assert [each["function"]["name"] for each in tool_definitions(selection)] == names
