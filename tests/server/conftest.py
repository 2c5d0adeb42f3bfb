"""A server on the demo model in this process, under uvicorn, and fakes of its service."""

import asyncio
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import torch
import uvicorn
from fastapi import FastAPI
from openai import OpenAI

from promptcache import Engine
from promptcache.retrieval import tool_member
from promptcache.rows.batch import Batch
from promptcache.server import ApiKeys, ServerSettings, create_app
from promptcache.server.gate import digests
from promptcache.server.run import DrainingServer
from promptcache.server.state import ServerState
from tests.engine.calling import HERMES, TOOLS, engine_of

TRAVEL = Path(__file__).parents[2] / "schemas" / "travel.xml"
CHATS = "/v1/chat/completions"
XML = {"content-type": "application/xml"}
QUESTION = {"role": "user", "content": "What is the best dish of Miami?"}
KEYS = ApiKeys(clients=digests(["alice", "bob"]), admins=digests(["root"]))
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    app: FastAPI
    clients: ExitStack
    server: uvicorn.Server

    @property
    def state(self) -> ServerState:
        """Its state."""
        state: ServerState = self.app.state.server
        return state

    def http(self, key: str | None = "alice") -> httpx.Client:
        """Return a client for raw requests."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def get(self, path: str, key: str | None = "alice", **options: Any) -> httpx.Response:
        """Ask for a path."""
        with self.http(key) as client:
            return client.get(path, **options)

    def post(self, path: str, body: object = None, key: str | None = "alice", **options: Any) -> httpx.Response:
        """Send a body: text is a document in XML, and all else is JSON."""
        given = {"content": body, "headers": XML} if isinstance(body, str) else {"json": body}
        with self.http(key) as client:
            return client.post(path, **{**given, **options})

    def openai(self, key: str = "alice") -> Any:
        """Return OpenAI's client as it is."""
        return self.clients.enter_context(OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30))


@pytest.fixture(autouse=True)
def _refusals_have_reasons() -> Iterator[None]:
    """In all tests, the line of a refused request has a time, the caller, and the code of its error."""
    lines: list[dict[str, Any]] = []
    handler, logger = logging.Handler(), logging.getLogger("promptcache.server")
    handler.addFilter(lambda record: record.name == logger.name)  # loggers below have other lines
    handler.emit = lambda record: lines.append(json.loads(record.getMessage()))
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    logger.setLevel(level)
    refused = [line for line in lines if (line.get("status") or 0) >= 400]
    assert [line for line in refused if not {"time", "caller", "error"} <= line.keys()] == []


def engine_with(schema: Path = TRAVEL, **options: Any) -> Engine:
    """Return an engine with the demo model and a schema."""
    engine = Engine.from_pretrained("demo", **options)
    engine.add_schema(schema)
    return engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The demo model with the travel schema, warm."""
    engine = engine_with()
    engine.warm()
    return engine


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """A server with keys of two clients and of an administrator, on an engine of its own."""
    yield from running(create_app(engine_with(), keys=KEYS))


@pytest.fixture(scope="module")
def own_server() -> Iterator[Served]:
    """Such a server for one file of tests, whose history changes no others."""
    yield from running(create_app(engine_with(), keys=KEYS))


@pytest.fixture(scope="module")
def open_server() -> Iterator[Served]:
    """A server that needs no key of clients, with one administrator."""
    yield from running(create_app(engine_with(), keys=ApiKeys(admins=digests(["root"]))))


AGENT = """<schema name="agent"><system>You call tools. <collection name="tools"/>
<module name="clock"><![CDATA[Also:
{tool}
]]></module></system>
<example><prompt schema="agent"><tools><weather/></tools><clock/><user>How warm is it in Oslo?</user></prompt></example></schema>"""


@pytest.fixture(scope="module")
def tools() -> Iterator[Served]:
    """A server for one file of tests, whose model has a chat template with tools; its schema `agent` defines `TOOLS`."""
    engine = engine_of(HERMES)[0]
    engine.add_schema(AGENT.format(tool=tool_member(TOOLS[1])[1]))
    engine.add_member("agent", "tools", *tool_member(TOOLS[0]))
    yield from running(create_app(engine))


def running(app: FastAPI, send_buffer: int | None = None) -> Iterator[Served]:
    """Run an application under uvicorn in a thread, as `serve` does, with bytes that the kernel keeps for a client."""
    listening = socket.create_server(("127.0.0.1", 0))
    # asyncio sets this on sockets that it opens, as for `serve`. Without it each answer waits 40 ms for an ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    server = DrainingServer(app, lambda _: None)
    server.last_bytes_s = 1
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        wait_until(lambda: server.started and httpx.get(f"{url}/health").status_code == 200)
        with ExitStack() as clients:
            yield Served(url, app, clients, server)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for something that another thread does. Machines may be slow, so the timeout is long."""
    event = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        event.wait(0.02)
    raise AssertionError("this took too long")


def held_steps(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold the forward passes of services; the event lets them go on. So a request runs as long as a test needs."""
    step, go_on = Batch.step, threading.Event()

    def held(self: Batch, work: Any, **options: Any) -> torch.Tensor:
        assert go_on.wait(60)
        return step(self, work, **options)

    monkeypatch.setattr(Batch, "step", held)
    return go_on


def in_process(app: FastAPI, work: Callable[[httpx.AsyncClient], Awaitable[_Made]]) -> _Made:
    """Run requests on an application without a network."""

    async def run() -> _Made:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            while (await client.get("/health")).json()["status"] == "starting":
                await asyncio.sleep(0.01)
            return await work(client)

    return asyncio.run(run())


def answers(app: FastAPI, *bodies: Any, path: str = CHATS) -> list[httpx.Response]:
    """Return the responses to bodies that are sent one after the other, without a network."""

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post(path, json=each) for each in bodies]

    return in_process(app, ask)


def events(stream: str) -> list[dict[str, Any]]:
    """Return the events of a stream, which ends with [DONE]."""
    *frames, done, nothing = stream.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", ""), frames[-3:]
    return [json.loads(each.removeprefix("data: ")) for each in frames]


def choices(answer: httpx.Response, number: int = 1) -> list[tuple[str, str]]:
    """Return text and finish reason of each choice of a chat or completion, which may be a stream."""
    assert answer.status_code == 200, answer.text
    is_stream = "event-stream" in answer.headers["content-type"]
    found, finishes = [""] * number, [""] * number
    for chunk in events(answer.text) if is_stream else [answer.json()]:
        for each in chunk["choices"]:
            part = each.get("delta", each.get("message", each))
            found[each["index"]] += part.get("content", part.get("text")) or ""
            finishes[each["index"]] = each["finish_reason"] or ""
    return list(zip(found, finishes, strict=True))


@contextmanager
def server_process(
    *options: str, soft_files: int | None = None, log: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server in a process with a soft limit of open files and a file for its log; return it with its URL."""
    command = [sys.executable, "-m", "promptcache", "serve", "--schema", str(TRAVEL), "--port", "0", *options]
    if soft_files is not None:
        command = ["sh", "-c", f'ulimit -Sn {soft_files}; exec "$@"', "sh", *command]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        lines, found = [], None
        for line in running.stderr:
            lines.append(line)
            if found := re.search(r"http://127.0.0.1:\d+", line):
                break
        assert found, lines

        def copy() -> None:
            with (log or Path(os.devnull)).open("w", encoding="utf-8") as file:
                for line in running.stderr:
                    file.write(line)
                    file.flush()

        copying = threading.Thread(target=copy, daemon=True)
        copying.start()
        try:
            yield running, found[0]
        finally:
            running.kill()
            copying.join(30)  # it reads to the end before the pipe is closed


class ScriptedService:
    """A service that tells each listener what a script says, from a thread of its own."""

    def __init__(self, *script: object, errors: Iterable[Exception] = ()) -> None:
        """Create a service that waits for `Event`s. Each of `errors`, and a script of one error, is raised at a submission."""
        self.state = "ready"
        self.counts = type("Counts", (), {"num_running": 0, "num_waiting": 0, "num_waiting_tokens": 0, "tail_bytes": 0})
        self.cancelled = threading.Event()
        self.prompts: list[Any] = []
        self.asked: list[float] = []
        self.requests: Any = None
        self._script, self._errors = script, [*errors]

    def request(self, prompt: object, *, reuse: bool, **options: object) -> Any:
        """Keep the prompt, and return the request of it."""
        self.prompts.append(prompt)
        return self.requests.build(prompt, self.requests.read(options))

    def submit_request(self, _request: object, listener: Callable[[Any], None]) -> Any:
        """Run the script."""
        self.asked.append(time.monotonic())
        if self._errors:
            raise self._errors.pop(0)
        match self._script:
            case (Exception() as error,):
                raise error

        def tell() -> None:
            for item in self._script:
                if isinstance(item, threading.Event):
                    item.wait(10)
                else:
                    listener(item)

        threading.Thread(target=tell, daemon=True).start()
        return type("Ticket", (), {"cancel": staticmethod(self.cancelled.set)})

    def drain(self, timeout_s: float) -> bool:
        """Nothing runs."""
        return True

    def close(self) -> None:
        """Nothing to end."""


def scripted(
    engine: Engine,
    service: ScriptedService,
    monkeypatch: pytest.MonkeyPatch,
    keys: ApiKeys | None = None,
    **settings: Any,
) -> FastAPI:
    """Return an application over a scripted service."""
    service.requests = engine._requests
    monkeypatch.setattr(type(engine), "service", lambda *_, **__: service)
    return create_app(engine, ServerSettings(**settings), keys=keys)


CHAT = {"model": "demo@travel", "messages": [QUESTION], "temperature": 0, "prompt_cache": {"use": ["miami"]}}
"""A valid body."""
