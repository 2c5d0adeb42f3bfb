"""Keys, sizes, ids and the log: what a request meets before anything else."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from promptcache import Engine
from promptcache.diagnostics import InvalidValue
from promptcache.server import ApiKeys, ServerSettings, create_app, read_keys
from promptcache.server.limits import digests
from tests.server.conftest import CHAT, KEYS, ScriptedService, Served, in_process, scripted, wait_until


def test_everything_but_health_needs_the_key(served: Served) -> None:
    """Each endpoint is 401 without a key and with a wrong one, except the state of the process, and the page."""
    paths = {route.path: next(iter(route.methods)) for route in served.app.routes if isinstance(route, APIRoute)}
    paths |= dict.fromkeys(("/v1/chat/completions", "/v1/completions", "/v1/prompts", "/v1/check"), "POST")
    paths |= dict.fromkeys(
        ("/v1/models", "/v1/schemas", "/metrics", "/", "/page/page.js", "/nowhere", "/livez", "/health"), "GET"
    )
    refused: dict[str, set[int]] = {}
    for key in (None, "eve", "x y"):
        with served.http(key) as client:
            for path, method in paths.items():
                response = client.request(method, path.replace("{name:path}", "x"))
                refused.setdefault(path, set()).add(response.status_code)

    assert {path for path, codes in refused.items() if codes != {401}} == {"/", "/page/page.js", "/livez", "/health"}


@pytest.mark.parametrize("chunked", [False, True])
def test_too_large_bodies_are_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch, chunked: bool) -> None:
    """A body beyond the limit is 413, whether its length is announced or not."""
    app = scripted(engine, ScriptedService(), monkeypatch, max_body_bytes=1000)

    async def body():  # type: ignore[no-untyped-def]
        for _ in range(20):
            yield b" " * 100

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        content = body() if chunked else b" " * 2000
        return await client.post("/v1/chat/completions", content=content)

    response = in_process(app, ask)

    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_request_ids(served: Served) -> None:
    """A plain id of the client is taken over; any other is replaced."""
    with served.http() as client:
        ids = [
            client.get("/livez", headers={"x-request-id": each}).headers["x-request-id"]
            for each in ("a.b-1", "a b", "x" * 200)
        ]

    assert ids[0] == "a.b-1"
    assert all(len(each) == 32 for each in ids[1:])


def test_log_has_one_line_for_each_request_and_no_text(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A line is JSON with the id and the counts; neither prompt nor answer nor key is in it."""
    secret = {**CHAT, "messages": [{"role": "user", "content": "xyzzy: what is the best dish of Miami?"}]}
    with caplog.at_level(logging.INFO, "promptcache.server"), served.http() as client:
        client.get("/livez", headers={"x-request-id": "zero"})
        wait_until(lambda: "zero" in caplog.text)
        caplog.clear()  # lines of requests before this test
        client.post("/v1/chat/completions", json=secret, headers={"x-request-id": "one"})
        client.post("/v1/chat/completions", json={**secret, "temperature": "xyzzy"}, headers={"x-request-id": "two"})
        wait_until(lambda: "two" in caplog.text)  # a line is written after its answer

    lines = [json.loads(each.message) for each in caplog.records if each.name == "promptcache.server"]
    assert [(each["id"], each["status"]) for each in lines] == [("one", 200), ("two", 400)]
    assert lines[0]["completion_tokens"] > 0
    assert not any(word in caplog.text for word in ("xyzzy", "crab", "alice"))


def test_admin_key_serves_clients_and_no_key_is_needed_without_keys(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With admin keys only, clients need none, and changes of schemas need one."""
    app = scripted(engine, ScriptedService(), monkeypatch, keys=ApiKeys(admins=digests(["root"])))

    async def ask(client: httpx.AsyncClient) -> list[int]:
        admin = {"authorization": "Bearer root"}
        answers = [
            await client.get("/v1/models"),
            await client.get("/v1/models", headers={"authorization": "Bearer anything"}),
            await client.get("/v1/models", headers=admin),
            await client.post("/v1/schemas/travel/warm"),
            await client.post("/v1/schemas/travel/warm", headers=admin),
        ]
        return [each.status_code for each in answers]

    assert in_process(app, ask) == [200, 200, 200, 403, 200]


def test_files_of_keys(tmp_path: Path) -> None:
    """A key a line; comments and empty lines are skipped; a file that has no valid keys, or is not UTF-8, is refused."""
    path = tmp_path / "keys"
    path.write_text("# two\n\nalice\n  bob \n", encoding="utf-8")

    assert read_keys(path) == digests(["alice", "bob"])
    for text in ("", "# none\n", "two words\n", "clé\n", "del\x7f\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidValue, match="keys"):
            read_keys(path)
    path.write_bytes(b"alice\nkey\xff\n")
    with pytest.raises(InvalidValue, match="keys: byte 0xff in line 2 is not UTF-8; save the file as UTF-8"):
        read_keys(path)


def test_metrics_count_tokens_by_origin(engine: Engine) -> None:
    """Counters add up to the usage that clients see."""
    engine.clear_history()

    async def ask(client: httpx.AsyncClient) -> tuple[dict[str, int], str]:
        made = await client.post("/v1/chat/completions", json=CHAT)
        return made.json()["usage"], (await client.get("/metrics")).text

    usage, text = in_process(create_app(engine, ServerSettings(model="demo")), ask)
    cached = usage["prompt_tokens_details"]["cached_tokens"]  # type: ignore[index]

    assert f'promptcache_prompt_tokens_total{{source="reused"}} {float(cached)}' in text
    assert f'source="prefilled"}} {float(usage["prompt_tokens"] - cached)}' in text
    assert f"promptcache_generation_tokens_total {float(usage['completion_tokens'])}" in text
    assert 'promptcache_requests_total{endpoint="chat",finish="stop"} 1.0' in text
    assert "promptcache_time_to_first_token_seconds_count 1.0" in text
    assert f"inter_token_latency_seconds_count {float(usage['completion_tokens'] - 1)}" in text
    assert "promptcache_requests_running " in text


HOSTS = {
    "localhost:8000": 200,
    "LOCALHOST": 200,
    "a.localhost": 200,
    "127.0.0.1:8000": 200,
    "[::1]:8000": 200,
    "192.0.2.7": 200,
    "Gpu.example:8000": 200,
    "evil.example": 403,
    "evil.example:8000": 403,
    "localhost.evil.example": 403,
    "127.0.0.1.evil.example": 403,
    "localhost@evil.example": 403,
    "evil.example#localhost": 403,
}


def test_without_keys_only_own_names_are_served(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name of another site there is no answer, so its pages cannot read any; health has one."""
    app = scripted(engine, ScriptedService(), monkeypatch, hosts=["gpu.example"])

    async def ask(client: httpx.AsyncClient) -> dict[str, int]:
        assert (await client.get("/health", headers={"host": "evil.example"})).status_code == 200
        return {each: (await client.get("/v1/models", headers={"host": each})).status_code for each in HOSTS}

    assert in_process(app, ask) == HOSTS


def test_with_keys_any_name_is_served(served: Served) -> None:
    """A page of another site has no key."""
    with served.http() as client:
        assert client.get("/v1/models", headers={"host": "api.example"}).status_code == 200


def test_metrics_need_a_key_of_their_own(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of clients do not read what others do; a key for metrics does nothing else."""
    keys = ApiKeys(clients=digests(["alice"]), admins=digests(["root"]), metrics=digests(["graphs"]))
    app = scripted(engine, ScriptedService(), monkeypatch, keys=keys)

    async def ask(client: httpx.AsyncClient) -> list[tuple[int, int]]:
        found = []
        for key in ("alice", "root", "graphs", "eve"):
            headers = {"authorization": f"Bearer {key}"}
            answers = [await client.get(path, headers=headers) for path in ("/metrics", "/v1/models")]
            found.append((answers[0].status_code, answers[1].status_code))
        return found

    assert in_process(app, ask) == [(403, 200), (200, 200), (200, 401), (401, 401)]


ORIGINS = [
    (["https://app.example"], "https://app.example", "https://app.example"),
    (["https://app.example"], "https://evil.example", None),
    (["*"], "https://app.example", "*"),
    ([], "https://app.example", None),
]


@pytest.mark.parametrize(("allowed", "origin", "header"), ORIGINS)
def test_pages_of_allowed_origins_read_answers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, allowed: list[str], origin: str, header: str | None
) -> None:
    """A browser may send a chat with a key, and read the answer, a refusal and the request ID, from these pages only."""
    app = scripted(engine, ScriptedService(), monkeypatch, keys=KEYS, origins=allowed)
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        client.headers["origin"] = origin
        path = "/v1/chat/completions"
        return [
            await client.options(path, headers=asked),
            await client.post(path, json={}, headers={"authorization": "Bearer alice"}),
            await client.post(path, json={}),
        ]

    preflight, refused, unknown = in_process(app, ask)
    names = [each.headers.get("access-control-allow-origin") for each in (preflight, refused, unknown)]
    assert (refused.status_code, unknown.status_code) == (400, 401)
    assert names == [header] * 3
    assert (preflight.status_code == 200) == (header is not None)
    if header is not None:
        assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "x-request-id" in refused.headers["access-control-expose-headers"]
