"""`/v1/messages`, in the form of Anthropic's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from promptcache import Engine
from tests.engine.calling import TOOLS
from tests.engine.test_reasoning import KEEPS, SAID, saying
from tests.engine.test_reasoning import engine_of as reasoning_engine
from tests.server.conftest import QUESTION, ScriptedService, Served, in_process, running, scripted

ASKED: dict[str, Any] = {"model": "demo", "max_tokens": 12, "messages": [QUESTION], "temperature": 0}
WEATHER = {"role": "user", "content": "How warm is it in Oslo?"}
OF_ANTHROPIC = [
    {"name": each["function"]["name"], "description": "", "input_schema": each["function"]["parameters"]}
    for each in TOOLS
]
CALLED: dict[str, Any] = {**ASKED, "messages": [WEATHER], "tools": OF_ANTHROPIC, "max_tokens": 100}


def ask(own_server: Served, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """Return the answer to a body, with the key in Anthropic's header."""
    with httpx.Client(base_url=own_server.url, headers={"x-api-key": "alice", **headers}, timeout=30) as client:
        made: dict[str, Any] = client.post("/v1/messages", json=body).json()
    return made


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream; each has its type as its name."""
    found = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def streamed(own_server: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of the answer to a body."""
    with own_server.http() as client:
        return events_of(client.post("/v1/messages", json={**body, "stream": True}).text)


def collected(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a client makes of a stream, as Anthropic describes it."""
    first, *others, last = events
    assert (first["type"], last) == ("message_start", {"type": "message_stop"})
    message = first["message"]
    arguments, num_open = "", 0
    for event in others:
        match event["type"]:
            case "content_block_start":
                assert (event["index"], num_open) == (len(message["content"]), 0)
                num_open = 1
                message["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    kind = delta["type"].removesuffix("_delta")
                    block[kind] += delta[kind]
            case "content_block_stop":
                num_open -= 1
                if arguments:
                    message["content"][event["index"]]["input"] = json.loads(arguments)
                    arguments = ""
            case "message_delta":
                assert num_open == 0
                message |= event["delta"] | {"usage": event["usage"]}
    return dict(message)


def test_an_answer_is_that_of_a_chat(own_server: Served) -> None:
    """It has the text of the same chat, and the tokens of its prompt in two numbers."""
    system = {"role": "system", "content": "Be brief."}
    cache = {"prompt_cache": {"use": ["miami"]}}
    chat = {**ASKED, "model": "demo@travel", "messages": [system, QUESTION], **cache}
    with own_server.http() as client:
        expected = client.post("/v1/chat/completions", json=chat).json()

    blocks = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief.", "cache_control": {"type": "x"}}]
    made = ask(own_server, {**ASKED, "model": "demo@travel", "system": blocks, **cache})

    assert made["content"] == [{"type": "text", "text": expected["choices"][0]["message"]["content"]}]
    assert (made["type"], made["role"], made["model"]) == ("message", "assistant", "demo@travel")
    assert made["prompt_cache"]["schema"] == "travel"
    usage = made["usage"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == expected["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("changes", "reason", "stop"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["crab", "stone"]}, "stop_sequence", "stone"),
    ],
)
def test_the_end_of_an_answer_has_a_reason(
    own_server: Served, changes: dict[str, Any], reason: str, stop: str | None
) -> None:
    """A stop sequence is named, and is no part of the text."""
    made = ask(own_server, {**ASKED, "model": "demo@travel", "prompt_cache": {"use": ["miami"]}, **changes})

    assert (made["stop_reason"], made["stop_sequence"]) == (reason, stop)
    assert stop is None or stop not in made["content"][0]["text"]


@pytest.mark.parametrize("name", ["text", "call"])
def test_a_stream_adds_up_to_the_answer(own_server: Served, tools: Served, name: str) -> None:
    """The events have the blocks, the stop reason and the usage of the whole answer."""
    where, body = (own_server, ASKED) if name == "text" else (tools, {**CALLED, "tool_choice": {"type": "any"}})
    ask(where, body)  # its text is in history from now on
    expected = ask(where, body)

    events = streamed(where, body)
    usage = expected["usage"]
    assert events[0]["message"]["usage"]["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    made = collected(events)

    ids = {"id": made["id"], "prompt_cache": expected["prompt_cache"]}
    for mine, other in zip(made["content"], expected["content"], strict=True):
        mine.get("id") and other.update(id=mine["id"])
    assert {**made, **ids} == {**expected, **ids}


def test_tools_are_called(tools: Served) -> None:
    """A call is a block, and the conversation goes on with its result."""
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    made = ask(tools, {**CALLED, "tool_choice": choice})

    (call,) = made["content"]
    assert (call["type"], call["name"], made["stop_reason"]) == ("tool_use", "weather", "tool_use")
    assert call["input"] in ({"city": "Oslo"}, {"city": "Rome"})

    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "7 degrees"}]}
    chat = [WEATHER, {"role": "assistant", "content": made["content"]}]
    question = [result, {"type": "text", "text": "And "}, {"type": "text", "text": "tomorrow?"}]
    answered = ask(tools, {**CALLED, "messages": [*chat, {"role": "user", "content": question}], "max_tokens": 2})

    function = {"name": "weather", "arguments": json.dumps(call["input"])}
    of_openai = [
        WEATHER,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "7 degrees"},
        {"role": "user", "content": "And tomorrow?"},
    ]
    with tools.http() as client:
        body = {"model": "demo", "messages": of_openai, "max_tokens": 2, "temperature": 0, "tools": _described()}
        expected = client.post("/v1/chat/completions", json=body).json()
    usage = answered["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected["usage"]["prompt_tokens"]
    assert answered["content"] == [{"type": "text", "text": expected["choices"][0]["message"]["content"]}]


def _described() -> list[dict[str, Any]]:
    return [{**each, "function": {**each["function"], "description": ""}} for each in TOOLS]


@pytest.mark.parametrize("is_stream", [False, True])
def test_reasoning_is_a_block(monkeypatch: pytest.MonkeyPatch, is_stream: bool) -> None:
    """It comes first, and may be sent back."""
    engine, _ = reasoning_engine(KEEPS, is_open=False)
    found = engine.generate([QUESTION], **saying(engine, SAID))
    body = {**ASKED, "stream": is_stream}

    response = _answered(engine, ScriptedService(*found.token_ids, found), monkeypatch, body)

    made = collected(events_of(response.text)) if is_stream else response.json()
    thinking = {"type": "thinking", "thinking": "Many.", "signature": ""}
    assert made["content"] == [thinking, {"type": "text", "text": "Ceviche."}]
    back = {"role": "assistant", "content": made["content"]}
    chat = [QUESTION, back, {"role": "user", "content": "Where?"}]
    service = ScriptedService(*found.token_ids, found)
    assert _answered(engine, service, monkeypatch, {**ASKED, "messages": chat}).status_code == 200
    assert [(each.text, each.reasoning) for each in service.prompts[0].messages] == [
        (QUESTION["content"], ""),
        ("Ceviche.", "Many."),
        ("Where?", ""),
    ]


def _answered(
    engine: Engine, service: ScriptedService, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> httpx.Response:
    app = scripted(engine, service, monkeypatch)

    async def post(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/messages", json=body)

    return in_process(app, post)


def test_a_slow_stream_has_pings_and_an_error_is_its_last_event(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the form of Anthropic's events."""
    monkeypatch.setattr("promptcache.server.answers.KEEP_ALIVE_S", 0.01)
    token, go_on = engine.tokenizer.tokenize("The")[0], threading.Event()
    app = scripted(engine, ScriptedService(token, go_on, RuntimeError("x")), monkeypatch)

    text, body = "", {**ASKED, "stream": True}
    with (
        contextmanager(running)(app) as own_server,
        own_server.http() as client,
        client.stream("POST", "/v1/messages", json=body) as response,
    ):
        for piece in response.iter_text():
            text += piece
            if "ping" in text:
                go_on.set()
    events = events_of(text)

    assert {"type": "ping"} in events
    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "api_error")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_tokens": None}, "max_tokens is not allowed: Field required"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "'thinking' is not supported"),
        ({"mcp_servers": [{}]}, "'mcp_servers' is not supported"),
        ({"best_of": 2}, "best_of is not known"),
        ({"metadata": {"user": "a"}}, "metadata.user is not known"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type='image'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text is not allowed"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}]}, "content[0].x is not"),
        ({"messages": ["x"]}, "messages[0] is not allowed: an object is expected"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role is not allowed"),
        ({"system": [{"type": "image"}]}, "system[0].type='image' is not supported"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type='web_search_20250305'"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name='a b' is not allowed"),
        ({"tools": OF_ANTHROPIC, "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
        ({"tools": OF_ANTHROPIC, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice names 'x'"),
        ({"max_tokens": 10**6}, "max_tokens=1000000 is more than 1024"),
        ({"messages": [QUESTION, QUESTION, {"role": "assistant", "content": "<"}], "model": "x"}, "no model 'x'"),
    ],
)
def test_what_is_not_possible_is_refused(tools: Served, changes: dict[str, Any], words: str) -> None:
    """The error has Anthropic's form, and names the field or the place."""
    made = ask(tools, {**ASKED, **changes})

    assert made["type"] == "error"
    assert made["error"]["type"] in ("invalid_request_error", "not_found_error")
    assert words in made["error"]["message"]


def test_keys_come_in_either_header(own_server: Served) -> None:
    """Errors in front of the endpoint have the form of Anthropic's, too."""
    assert "content" in ask(own_server, ASKED)
    assert "content" in ask(own_server, ASKED, **{"x-api-key": "", "authorization": "Bearer bob"})
    assert ask(own_server, ASKED, **{"x-api-key": "eve"})["error"]["type"] == "authentication_error"
    with own_server.http() as client:
        assert client.get("/v1/messages").json()["error"]["type"] == "invalid_request_error"
        assert client.post("/v1/messages/batches").json()["error"]["type"] == "not_found_error"


def test_the_user_separates_history(own_server: Served) -> None:
    """Requests of other users find nothing of each other."""
    body = {**ASKED, "messages": [{"role": "user", "content": "Where is the old harbour of the town?"}]}
    cached = [
        ask(own_server, {**body, "metadata": {"user_id": user}})["usage"]["cache_read_input_tokens"]
        for user in ("ann", "ann", "ben")
    ]
    assert cached[1] > cached[0] == cached[2]
