"""Every refusal has a status, a code and a shape for which OpenAI's client raises its own classes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import openai
import pytest

from promptcache import Engine
from promptcache.diagnostics import EngineClosed, QueueFull, QueueTimeout, ServiceClosed
from promptcache.runtime import ServiceLimits
from promptcache.server import ServerSettings, create_app
from promptcache.server.errors import ApiError
from promptcache.server.events import MAX_UNREAD, RowEvents, RowItem
from promptcache.server.loop_calls import LoopCalls
from tests.server.conftest import CHAT, QUESTION, ScriptedService, Served, in_process, running, scripted

IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a `response_format` of a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


BAD: list[tuple[dict[str, Any], str, str | None]] = [
    ({"prompt_cache": {"use": ["maimi"]}}, "PC401", "prompt_cache.use[0]"),
    ({"prompt_cache": {"use": ["miami", "miami"]}}, "PC405", "prompt_cache.use[1]"),
    ({"prompt_cache": {"use": {"miami": {"days": "1"}}}}, "PC402", "prompt_cache.use.miami.days"),
    ({"prompt_cache": {"use": ["miami", "paris"]}}, "PC408", None),
    ({"prompt_cache": {"schema": "other"}}, "invalid_value", "prompt_cache.schema"),
    ({"prompt_cache": {"use": ["miami"], "repair": "first-x"}}, "invalid_value", "prompt_cache.repair"),
    ({"prompt_cache": {"use": ["miami", 3]}}, "invalid_value", "prompt_cache.use[1]"),
    (
        {"prompt_cache": {"use": {"trip-plan": {"duration": True}}}},
        "invalid_value",
        "prompt_cache.use.trip-plan.duration",
    ),
    ({"prompt_cache": {"fill": {"a": None}}}, "invalid_value", "prompt_cache.fill.a"),
    ({"prompt_cache": {"schemas": "x"}}, "invalid_value", "prompt_cache.schemas"),
    ({"messages": [IMAGE]}, "invalid_value", "messages[0].content[0].type"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_request", None),
    ({"messages": [{"role": "function", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"messages": "hello"}, "invalid_value", "messages"),
    ({"tools": [{"type": "function"}]}, "invalid_value", "tools"),
    ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice"),
    ({"tool_choice": "get_weather"}, "invalid_value", "tool_choice"),
    ({"response_format": {"type": "grammar"}}, "invalid_value", "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format"),
    ({"response_format": schema_format({"not": {}})}, "invalid_value", "response_format"),
    ({"logit_bias": {"a": 2}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"1": "2"}}, "invalid_value", "logit_bias.1"),
    ({"logit_bias": {"999999": 2}}, "invalid_value", None),
    ({"frequency_penalty": 3}, "invalid_value", "frequency_penalty"),
    ({"top_logprobs": 21, "logprobs": True}, "invalid_value", "top_logprobs"),
    ({"temperature": "0"}, "invalid_value", "temperature"),
    *(({name: 1e-40}, "invalid_value", name) for name in ("temperature", "repetition_penalty")),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"max_tokens": 2000}, "invalid_value", "max_tokens"),
    ({"n": 17}, "invalid_value", "n"),
    ({"max_completion_tokens": 5000}, "invalid_value", "max_completion_tokens"),
    ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
    ({"stream_options": {"x": 1}}, "invalid_value", "stream_options.x"),
    ({"max_token": 3}, "invalid_value", "max_token"),
]


@pytest.mark.parametrize(("changes", "code", "param"), BAD, ids=lambda each: str(each)[:60])
def test_bad_requests(served: Served, changes: dict[str, Any], code: str, param: str | None) -> None:
    """What a server cannot answer as asked is refused with its place, and nothing is queued."""
    with served.http() as client:
        response = client.post("/v1/chat/completions", json={**CHAT, **changes})

    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, code), error
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param is not None:
        assert error["param"] == param
        assert param in error["message"]


def test_bad_request_is_openais_class(served: Served) -> None:
    """The client's error carries the code, and all diagnostics of the prompt."""
    with pytest.raises(openai.BadRequestError) as caught:
        served.openai().chat.completions.create(
            model="demo@travel", messages=[QUESTION], extra_body={"prompt_cache": {"use": ["maimi", "romee"]}}
        )

    assert caught.value.code == "PC401"
    assert [each["code"] for each in caught.value.body["diagnostics"]] == ["PC401", "PC401"]  # type: ignore[index]
    assert "did you mean <miami>?" in caught.value.message


def test_too_long_prompt_is_refused_with_both_numbers(served: Served) -> None:
    """A prompt beyond the positions of the model is a bad request, before anything is queued."""
    long = [{"role": "user", "content": "word " * 6000}]
    with pytest.raises(openai.BadRequestError, match=r"positions.*4096") as caught:
        served.openai().chat.completions.create(model="demo", messages=long)

    assert caught.value.code == "context_length_exceeded"


def test_wrong_keys_models_and_schemas(served: Served) -> None:
    """401, 403 and 404 are the client's own classes."""
    with pytest.raises(openai.AuthenticationError) as wrong:
        served.openai("eve").models.list()
    with pytest.raises(openai.PermissionDeniedError):
        served.openai().put("/schemas/x", cast_to=object, body={})
    with pytest.raises(openai.NotFoundError) as model:
        served.openai().chat.completions.create(model="gpt-4", messages=[QUESTION])
    with pytest.raises(openai.NotFoundError) as schema:
        served.openai().chat.completions.create(
            model="demo", messages=[QUESTION], extra_body={"prompt_cache": {"schema": "../etc"}}
        )

    assert schema.value.param == "prompt_cache.schema"
    assert [each.value.code for each in (wrong, model, schema)] == [
        "invalid_api_key",
        "model_not_found",
        "schema_not_found",
    ]


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_unknown_paths_and_methods_have_the_shape(served: Served, method: str) -> None:
    """404 and 405 of the framework are error objects, too."""
    with served.http() as client:
        response = client.request(method, "/v1/nothing" if method == "GET" else "/v1/models")

    assert response.status_code in (404, 405)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/schemas/travel", "HEAD, GET, PUT, DELETE"),
        ("/v1/schemas/travel/warm", "HEAD, GET, PUT, POST, DELETE"),
        ("/v1/chat/completions", "POST"),
        ("/health", "HEAD, GET"),
        ("/page/page.js", "GET, HEAD"),
    ],
)
@pytest.mark.parametrize("method", ["OPTIONS", "PATCH"])
def test_methods_of_a_path(served: Served, method: str, path: str, methods: str) -> None:
    """405 lists all methods of the path."""
    with served.http() as client:
        response = client.request(method, path)

    assert (response.status_code, response.headers["allow"]) == (405, methods)


def test_head_is_get_without_a_body(served: Served) -> None:
    """HEAD has the status and headers of GET at each of its endpoints, and no body; elsewhere it is 405."""
    paths = ["/", "/livez", "/health", "/v1/models", "/v1/schemas/travel", "/v1/schemas/no", "/page/page.js"]
    with served.http() as client:
        for path in paths:
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.headers["content-length"]) == (get.status_code, str(len(get.content)))
            assert (head.text, head.headers["content-type"]) == ("", get.headers["content-type"])
        assert client.head("/metrics", headers={"authorization": "Bearer root"}).status_code == 200
        assert client.head("/v1/prompts").status_code == 405


@pytest.mark.parametrize(
    ("error", "status", "code", "header"),
    [
        (QueueFull("full", "queue_full"), 429, "queue_full", ("retry-after", "1")),
        (QueueFull("full", "queue_tokens_full"), 429, "queue_tokens_full", ("retry-after", "1")),
        (QueueTimeout("waited"), 408, "queue_timeout", ("retry-after", "1")),
        (ServiceClosed("ends", "draining"), 503, "draining", ("retry-after", "1")),
        (ServiceClosed("dead", "worker_dead"), 503, "worker_dead", ("x-should-retry", "false")),
        (EngineClosed("closed"), 503, "engine_closed", ("x-should-retry", "false")),
        (ZeroDivisionError("secret"), 500, "internal_error", ("content-type", "application/json")),
    ],
    ids=lambda each: str(each)[:20],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["submit", "first token"])
def test_refusals_of_the_service(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    code: str,
    header: tuple[str, str],
    stream: bool,
    when: str,
) -> None:
    """A refusal of the service, or an error before the first token, has a status, also of a stream."""
    soon = threading.Event()
    soon.set()
    app = scripted(engine, ScriptedService(*((error,) if when == "submit" else (soon, error))), monkeypatch)

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/chat/completions", json={**CHAT, "stream": stream})

    response = in_process(app, ask)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.headers[header[0]] == header[1]
    assert "secret" not in response.text


def test_error_in_a_stream_is_its_last_event(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first token an error is an event, for which the client raises; there is no [DONE]."""
    app = scripted(engine, ScriptedService(265, 2757, RuntimeError("secret")), monkeypatch)
    for server in running(app):
        with pytest.raises(openai.APIError, match="the log of the server"):
            list(server.openai().chat.completions.create(model="demo", messages=[QUESTION], stream=True))
        with server.http() as client:
            text = client.post("/v1/chat/completions", json={**CHAT, "stream": True}).text

    assert "[DONE]" not in text
    assert "secret" not in text


def test_paths_with_a_slash_at_the_end_are_unknown(served: Served) -> None:
    """No redirect sends a prompt to an address that is made of the client's own header."""
    with served.http() as client:
        response = client.post("/v1/chat/completions/", json=CHAT, headers={"host": "elsewhere"})

    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_answers_that_could_never_wait_together_are_refused_for_good(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a request wait first, so they have to fit into the queue together: 429 would be repeated for ever."""

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        asked = [{**CHAT, "n": n, "max_tokens": 20} for n in (1, 4)]
        found = [await client.post("/v1/chat/completions", json=each) for each in asked]
        prompts = {"model": "demo", "prompt": ["a", "b" * 40, "c", "d", "e"], "max_tokens": 20}
        return [*found, await client.post("/v1/completions", json=prompts)]

    settings = ServerSettings(model="demo", limits=ServiceLimits(max_waiting_tokens=50))
    one, *others = in_process(create_app(engine, settings), ask)

    assert one.status_code == 200
    assert [(each.status_code, each.json()["error"]["param"]) for each in others] == [(400, "n"), (400, "prompt")]
    assert all("are more than 50 that may wait" in each.json()["error"]["message"] for each in others)


def test_streams_have_no_line_ends_of_unicode(engine: Engine) -> None:
    """Clients that cut lines as Python does get whole events."""

    async def ask(client: httpx.AsyncClient) -> tuple[str, str]:
        asked = {"model": "demo", "prompt": "The \u2028 \u2028 \u2028 \u2028", "temperature": 0, "max_tokens": 30}
        whole = await client.post("/v1/completions", json=asked)
        stream = await client.post("/v1/completions", json={**asked, "stream": True})
        return whole.json()["choices"][0]["text"], stream.text

    whole, stream = in_process(create_app(engine, ServerSettings(model="demo")), ask)
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines()[:-2] if line]

    assert "\u2028" in whole
    assert "".join(each["choices"][0]["text"] for each in events) == whole


def test_request_timeout(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that takes too long is 408, and its row is cancelled."""
    service = ScriptedService(threading.Event())
    app = scripted(engine, service, monkeypatch, request_timeout_s=0.1)

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/chat/completions", json=CHAT)

    started = time.perf_counter()
    response = in_process(app, ask)

    assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")
    assert response.headers["x-should-retry"] == "false"  # another attempt takes as long
    assert service.cancelled.is_set()
    assert time.perf_counter() - started < 5


def test_slow_reader_is_cancelled() -> None:
    """A client that is too many tokens behind loses its row, and gets the reason before all other tokens."""
    service = ScriptedService()

    async def read_nothing() -> tuple[int, RowItem]:
        events = RowEvents(LoopCalls(), 60, MAX_UNREAD)
        events.watch([service.submit_request("", lambda _: None)], asyncio.Event().wait)  # type: ignore[list-item,arg-type]
        tell = events.listener(0)
        for _ in range(MAX_UNREAD + 1):
            tell(2757)
        await asyncio.sleep(0.01)
        return await events.next()

    _, item = asyncio.run(read_nothing())

    assert isinstance(item, ApiError)
    assert item.code == "client_too_slow"
    assert service.cancelled.is_set()


@pytest.mark.parametrize(("stream", "status"), [(True, 408), (False, 200)])
def test_whole_answers_have_no_slow_reader(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stream: bool, status: int
) -> None:
    """The limit of unread tokens is one of streams: the server itself collects an answer that it sends at once."""
    monkeypatch.setattr("promptcache.server.answers.MAX_UNREAD", 0)

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/chat/completions", json={**CHAT, "stream": stream})

    assert in_process(create_app(engine, ServerSettings(model="demo")), ask).status_code == status
