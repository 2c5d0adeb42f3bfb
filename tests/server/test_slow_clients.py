"""The server closes the connections of slow clients, refuses too many and malformed requests, and answers others."""

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPResponse
from urllib.parse import urlsplit

import openai
import pytest

from promptcache import Engine
from promptcache.server import ServerSettings, create_app
from tests.server.conftest import (
    CHAT,
    CHATS,
    KEYS,
    ScriptedService,
    Served,
    choices,
    held_steps,
    running,
    scripted,
    wait_until,
)

TIMEOUT_S = 0.8


@pytest.fixture
def impatient(engine: Engine) -> Iterator[Served]:
    """A server with a short time limit for clients, four connections, and little memory for unread answers."""
    settings = ServerSettings(client_timeout_s=TIMEOUT_S, max_connections=4, max_new_tokens=3000, request_timeout_s=30)
    yield from running(create_app(engine, settings), send_buffer=4096)


@pytest.fixture
def crowded(engine: Engine) -> Iterator[Served]:
    """A server with four connections."""
    yield from running(create_app(engine, ServerSettings(max_connections=4)))


@pytest.fixture(scope="module")
def patient(engine: Engine) -> Iterator[Served]:
    """A server with the time limits of `serve`, which are longer than these tests wait."""
    yield from running(create_app(engine))


def connect(served: Served, receive_buffer: int | None = None) -> socket.socket:
    """Return a raw connection."""
    place = urlsplit(served.url)
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect((place.hostname or "", place.port or 0))
    return connection


def head(num_body_bytes: int, key: str = "") -> bytes:
    """Return the head of a chat."""
    return (
        f"POST {CHATS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {num_body_bytes}\r\n\r\n"
    ).encode()


def chat(**fields: object) -> bytes:
    """Return a whole request of a chat."""
    body = json.dumps({**CHAT, **fields}).encode()
    return head(len(body), "alice") + body


UNREAD = chat(stream=True, n=8, min_tokens=3000, max_tokens=3000)


def num_running(served: Served) -> int:
    return served.state.service.counts.num_running


def status(connection: socket.socket) -> int:
    """Ask for the models on an open connection, read the whole answer, and return its status."""
    connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def seconds_until_closed(served: Served, text: bytes) -> float:
    """Connect and send a text, and a byte from time to time if there is one; return the seconds until it was closed."""
    started = time.perf_counter()
    with connect(served) as connection, suppress(ConnectionError):
        connection.sendall(text)
        for _ in range(400 if text else 0):
            time.sleep(0.05)
            connection.sendall(b"x")
        connection.recv(1)
    return time.perf_counter() - started


def test_slow_heads_close_their_connections(impatient: Served) -> None:
    """A connection without a whole head ends in time, silent or with more of it byte by byte."""
    texts = [b"", b"G", head(10)[:40], b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /li"]
    with ThreadPoolExecutor(len(texts)) as threads:
        found = list(threads.map(partial(seconds_until_closed, impatient), texts))

    assert all(TIMEOUT_S / 2 < each < TIMEOUT_S + 10 for each in found), found


def test_a_body_after_its_answer_has_the_time_of_a_head(engine: Engine) -> None:
    """A client that was refused before its body had arrived cannot keep its connection by sending more of it."""
    settings = ServerSettings(client_timeout_s=TIMEOUT_S)
    for served in running(create_app(engine, settings, keys=KEYS)):
        assert seconds_until_closed(served, head(1000)) < TIMEOUT_S + 10


def test_a_slow_body_is_a_timeout(impatient: Served) -> None:
    """A body that does not arrive in time is 408 in OpenAI's shape, also if more of it comes byte by byte."""
    with connect(impatient) as connection:
        connection.sendall(head(1000))
        text = b""
        last_at = time.monotonic() + 0.7 * TIMEOUT_S
        with suppress(ConnectionError):  # a slow machine may send a byte after the server has closed the connection
            while time.monotonic() < last_at:
                connection.sendall(b"x")
                time.sleep(0.05)
        with suppress(ConnectionError):
            while piece := connection.recv(4096):
                text += piece

    assert text.startswith(b"HTTP/1.1 408")
    assert json.loads(text.rpartition(b"\r\n\r\n")[2])["error"]["code"] == "client_too_slow"


def test_a_slow_answer_is_no_slow_client(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits longer than its own time limit gets its answer, and asks again on the same connection."""
    pause = threading.Event()
    threading.Timer(1.5 * TIMEOUT_S, pause.set).start()
    service = ScriptedService(pause, RuntimeError("end"))
    for server in running(scripted(engine, service, monkeypatch, client_timeout_s=TIMEOUT_S)):
        with server.http() as client:
            assert client.post(CHATS, json=CHAT).status_code == 500
            time.sleep(1.25 * TIMEOUT_S)
            assert client.get("/livez").status_code == 200


@pytest.mark.slow
def test_a_connection_outlives_the_idle_time_of_clients(engine: Engine) -> None:
    """A connection takes a request after 6 seconds. httpx closes its own after 5, so it never sends one in vain."""
    for server in running(create_app(engine)):
        with connect(server) as connection:
            assert status(connection) == 200
            time.sleep(6)
            assert status(connection) == 200


def test_a_client_that_does_not_read_loses_its_row_and_its_connection(impatient: Served) -> None:
    """Others are answered meanwhile; then its row is free, its connection is closed, and nothing of it is left."""
    with connect(impatient, receive_buffer=2048) as connection:
        connection.sendall(UNREAD)
        wait_until(lambda: num_running(impatient) == 8)
        answers = [choices(impatient.post(CHATS, CHAT)) for _ in range(3)]
        wait_until(lambda: num_running(impatient) == 0)
        wait_until(lambda: not impatient.server.server_state.tasks)
        text = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"[DONE]" not in text
    metrics = impatient.get("/metrics").text

    assert answers == [[("The best dish of Miami is stone crab.", "stop")]] * 3
    assert re.search(r'requests_total\{endpoint="chat",finish="(error|cancelled)"\} 8\.0', metrics)


def test_a_client_that_does_not_read_delays_the_end_by_its_last_bytes_only(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """After the drain its connection is aborted, and its request ends with a line in the log, without a traceback."""
    app = create_app(engine, ServerSettings(max_new_tokens=3000, drain_s=0.1))
    with ExitStack() as stack, caplog.at_level("INFO", "promptcache.server"):
        for server in running(app, send_buffer=4096):
            server.server.last_bytes_s = 0.2
            connection = stack.enter_context(connect(server, receive_buffer=2048))
            connection.sendall(UNREAD)
            wait_until(lambda server=server: num_running(server) == 8)
            time.sleep(0.3)  # until the buffers are full
            server.server.handle_exit(signal.SIGTERM, None)
            started = time.perf_counter()

    assert time.perf_counter() - started < 20
    (line,) = (json.loads(each.message) for each in caplog.records if '"POST"' in each.message)
    assert line["finish"] in ("cancelled", "error")
    assert [each.message for each in caplog.records if each.name.startswith("uvicorn")] == []


def test_a_second_signal_ends_the_server_at_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A running stream gets an error as its last event, and the log a line, without a traceback."""
    app = create_app(engine, ServerSettings(max_new_tokens=3000))
    body = {**CHAT, "stream": True, "min_tokens": 3000, "max_tokens": 3000}
    with caplog.at_level("INFO", "promptcache.server"):
        for server in running(app):
            server.server.last_bytes_s = 30
            with server.http() as client, client.stream("POST", CHATS, json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                server.server.handle_exit(signal.SIGTERM, None)
                wait_until(lambda server=server: server.state.draining)
                server.server.handle_exit(signal.SIGTERM, None)
                started = time.perf_counter()
                data = [line for line in lines if line.startswith("data: ")]

    assert time.perf_counter() - started < 20
    assert json.loads(data[-1].removeprefix("data: "))["error"]["code"] == "draining"
    (line,) = (json.loads(each.message) for each in caplog.records if '"POST"' in each.message)
    assert line["error"] == "draining"
    assert [each.message for each in caplog.records if each.name.startswith("uvicorn")] == []


def test_idle_connections_make_room_for_new_ones(crowded: Served) -> None:
    """Above the limit the connection that has been idle for the longest time is closed, and no other."""
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(crowded)) for _ in range(4)]
        assert [status(each) for each in idle] == [200] * 4
        assert status(stack.enter_context(connect(crowded))) == 200

        assert idle[0].recv(1) == b""
        assert [status(each) for each in idle[1:]] == [200] * 3


def test_too_many_connections_are_refused(crowded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all connections are busy, requests are 503 in OpenAI's shape, and health is answered; then it ends."""
    go_on = held_steps(monkeypatch)
    with ExitStack() as others:
        for _ in range(4):
            others.enter_context(connect(crowded)).sendall(chat(max_tokens=1))
        wait_until(lambda: crowded.state.num_busy_connections() == 4)
        with pytest.raises(openai.InternalServerError) as caught:
            crowded.openai().models.list()
        health = crowded.get("/health")
        go_on.set()
        wait_until(lambda: crowded.state.num_busy_connections() == 0)

    assert (caught.value.status_code, caught.value.code) == (503, "too_many_connections")
    assert caught.value.response.headers["retry-after"] == "1"
    assert health.status_code == 200
    assert crowded.get("/v1/models").status_code == 200
    assert 'rejected_total{reason="too_many_connections"} 1.0' in crowded.get("/metrics").text


CHUNKED = b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two lengths": b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "a long head": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000,
    "a bad chunk": CHUNKED + b"zzz\r\n",
    "a bad rest": CHUNKED + b"1\r\nx\r\n",  # of a body that was refused already gets no second answer
    "an upgrade": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_requests(patient: Served, served: Served, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A request that is not HTTP gets 400 in OpenAI's shape, its connection is closed, and the log has lines of JSON only."""
    with connect(served if name == "a bad rest" else patient) as connection:
        connection.sendall(MALFORMED[name])
        answer = HTTPResponse(connection)
        answer.begin()
        body = answer.read()
        if name == "an upgrade":
            assert (answer.status, body, status(connection)) == (200, b"alive\n", 200)
        else:
            expected = (401, "invalid_api_key") if name == "a bad rest" else (400, "invalid_http")
            error = json.loads(body)["error"]
            assert (answer.status, error["code"]) == expected
            assert answer.headers["content-type"] == "application/json"
            if name == "a bad rest":
                connection.sendall(b"zzz\r\n")
            else:
                assert error["type"] == "invalid_request_error"
                assert '"error": "invalid_http"' in caplog.text
            assert connection.recv(1) == b""
    for record in caplog.records:
        if record.levelname != "INFO" or record.name == "promptcache.server":
            json.loads(record.message)


def num_cancelled(served: Served) -> float:
    """Return how many requests were cancelled, by the metrics."""
    text = served.get("/metrics", "root").text
    found = re.search(r'requests_total\{endpoint="chat",finish="cancelled"\} (\S+)', text)
    return float(found[1]) if found else 0


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_cancels_the_request(served: Served, stream: bool) -> None:
    """A closed connection removes a running request soon, and others are answered; a stream is one of OpenAI's client."""
    before = num_cancelled(served)
    if stream:
        answer = served.openai().chat.completions.create(
            model="demo", messages=CHAT["messages"], max_tokens=1024, stream=True, extra_body={"min_tokens": 1024}
        )
        next(iter(answer))
        answer.close()
    else:
        with connect(served) as connection:
            connection.sendall(chat(min_tokens=1024, max_tokens=1024))
            wait_until(lambda: num_running(served) == 1)
    wait_until(lambda: num_cancelled(served) == before + 1)
    wait_until(lambda: num_running(served) == 0)

    assert served.post(CHATS, CHAT).status_code == 200
