"""`promptcache serve`: its options, and a process that ends without breaking an answer."""

import asyncio
import gc
import json
import queue
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from promptcache import Engine, StoreConfig
from promptcache.cli.app import app
from promptcache.rows.batch import Batch
from promptcache.server import create_app, serve
from promptcache.server.run import DrainingServer
from tests.server.conftest import CHAT, CHATS, TRAVEL, XML, engine_with, server_process, wait_until


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls of `serve`, which serves nothing here."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr("promptcache.cli.serve.ServeOptions.load", lambda *_: None)
    monkeypatch.setattr("promptcache.cli.serve._check_address", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr("promptcache.server.create_app", lambda _engine, settings, **_: settings)
    monkeypatch.setattr("promptcache.server.serve", lambda app, **given: not calls.append({"settings": app, **given}))
    return calls


def _serve(*words: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *words], env=environment)
    return result.exit_code, result.stderr


def test_options_come_from_flags_then_the_environment_then_the_file(
    started: list[dict[str, Any]], tmp_path: Path
) -> None:
    """A flag wins over a variable, and a variable over the file of --config."""
    config = tmp_path / "serve.toml"
    config.write_text(
        f'max-rows = 3\nmax_waiting = 4\nport = 5\nschema = "{TRAVEL}"\ntail = "2 MiB"\n', encoding="utf-8"
    )

    code, errors = _serve("--config", str(config), "--port", "7", PROMPTCACHE_MAX_WAITING="6", PROMPTCACHE_PORT="8")

    assert code == 0, errors
    (call,) = started
    settings = call["settings"]
    assert (settings.max_rows, settings.max_waiting, call["port"], settings.tail_bytes) == (3, 6, 7, 2 * 2**20)
    assert call["host"] == "127.0.0.1"


def test_the_model_has_the_name_that_is_given(started: list[dict[str, Any]]) -> None:
    """Clients see the name of --served-model-name, else that of --model."""
    for environment in ({}, {"PROMPTCACHE_SERVED_MODEL_NAME": "mine"}):
        code, errors = _serve("--schema", str(TRAVEL), **environment)
        assert code == 0, errors

    assert [each["settings"].served_model_name for each in started] == ["demo", "mine"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--host", "0.0.0.0"], 2, "everyone could use the model"),
        (["--host", "example.org"], 2, "everyone could use the model"),
        (["--host", "0.0.0.0", "--insecure"], 0, ""),
        (["--host", "::1"], 0, ""),
        (["--host", "0.0.0.0", "--api-key-file", "keys"], 0, ""),
        (["--host", "0.0.0.0", "--admin-key-file", "keys"], 2, "everyone could use the model"),
        (["--api-key-file", "empty"], 2, "--api-key-file empty: at least one key"),
        (["--api-key-file", "latin"], 2, "--api-key-file latin: byte 0xff in line 1 is not UTF-8; save"),
        (["--api-key-file", "keys", "--admin-key-file", "latin"], 2, "--admin-key-file latin: byte 0xff in line 1"),
        (["--metrics-key-file", "keys"], 2, "--metrics-key-file needs --api-key-file"),
        (["--metrics-key-file", "empty", "--api-key-file", "keys"], 2, "--metrics-key-file empty: at least one key"),
        (["--allow-host", "gpu.example"], 0, ""),
        (["--allow-origin", "*", "--allow-origin", "https://app.example:8080"], 0, ""),
        (["--allow-origin", "app.example"], 2, "allow_origin=('app.example',) is not allowed: a list of '*' or"),
        (["--api-key-file", "nowhere"], 3, "No such file"),
        (["--config", "wrong.toml"], 2, "no option 'max_row'"),
        (["--config", "broken.toml"], 2, "is not TOML"),
        (["--config", "nowhere.toml"], 3, "No such file"),
        (["--schema", str(TRAVEL), "--schema", str(TRAVEL)], 2, "another file has the schema 'travel' too"),
        (["--schema", "nowhere.xml"], 3, "nowhere.xml"),
        (["--max-body", "9" * 400], 2, "is not allowed: a whole number of bytes from 1 on, below 2**63"),
        (["--memory", "9999999 TB"], 2, "'--memory': '9999999 TB' is not allowed: a whole number of bytes from 0 on"),
        (["--memory", "0", "--limit", "0"], 0, ""),
        (["--config", "twice.toml"], 2, "an option is there twice, with - and with _"),
        (["--api-key-file", "accent"], 2, "--api-key-file accent: the key in line 2 is not allowed: letters without"),
        (["--replicas", "2"], 2, "is for --ray"),
        (["--ray", "--port", "0"], 2, "name a port"),
        (["--ray", "--admin-key-file", "keys"], 2, "needs --schema-folder, so that schemas reach all replicas"),
        (["--ray", "--admin-key-file", "keys", "--schema-folder", "folder"], 3, "pip install 'promptcache[ray]'"),
        (["--ray", "--host", "0.0.0.0"], 3, "pip install 'promptcache[ray]'"),
        (["PROMPTCACHE_SCHEMA=a b.xml:c.xml"], 0, ""),  # names of files may have spaces
        (["--max-rows", "x", "PROMPTCACHE_MAX_ROWS=2"], 2, "'--max-rows': 'x' is not allowed: a whole number of rows"),
        (["PROMPTCACHE_MAX_ROWS=x"], 2, "Invalid value for '--max-rows' from PROMPTCACHE_MAX_ROWS: 'x' is not all"),
        (["--config", "x.toml"], 2, "Invalid value for '--max-rows' from --config x.toml: 'x' is not allowed"),
        (["PROMPTCACHE_CONFIG=x.toml"], 2, "Invalid value for '--max-rows' from --config x.toml: 'x' is not allowed"),
        (["--config", "x.toml", "PROMPTCACHE_MAX_ROWS=x"], 2, "'--max-rows' from PROMPTCACHE_MAX_ROWS: 'x' is not all"),
        (["--config", "zero.toml"], 2, "Invalid value for '--max-body' from --config zero.toml: '0' is not allowed"),
        (["--config", "list.toml"], 2, "from --config list.toml: '[1]' is not allowed: a whole number of rows"),
        (["--config", "true.toml"], 2, "'True' is not allowed: a whole number of rows"),
        (["--schema-folder", "keys/kept"], 3, "error: Not a directory: keys/kept"),
    ],
    ids=lambda each: " ".join(map(str, each))[:40] if isinstance(each, list) else None,
)
def test_options_are_checked_before_the_model_is_loaded(
    started: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    message: str,
) -> None:
    """Public addresses need keys, and files have to be right. The message names the variable or file that has a value."""
    files = {
        "keys": "alice\n",
        "empty": "\n",
        "accent": "alice\nclé\n",
        "wrong.toml": "max_row = 3\n",
        "broken.toml": "max_row =\n",
        "twice.toml": "max-rows = 1\nmax_rows = 2\n",
        "x.toml": 'max-rows = "x"',
        "zero.toml": "max_body = 0",
        "list.toml": "max_rows = [1]",
        "true.toml": "max_rows = true",
        "a b.xml": '<schema name="a">Text.</schema>',
        "c.xml": '<schema name="c">Text.</schema>',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "latin").write_bytes(b"key\xff\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("promptcache.cli.serve.find_spec", lambda name: None if name == "ray" else find_spec(name))

    environment = dict(each.split("=") for each in words if each.startswith("PROMPTCACHE_"))

    found, errors = _serve(*(each for each in words if "PROMPTCACHE_" not in each), **environment)

    assert (found, len(started)) == (code, int(code == 0)), errors
    assert message in errors


@pytest.mark.parametrize("ray", [(), ("--ray",)])
def test_an_address_that_is_not_free_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, ray: tuple[str, ...]
) -> None:
    """A port in use, and a host that is none, have one line with both options; the exit code is 3."""
    for name in ("ServeOptions.load", "_serve_ray"):
        monkeypatch.setattr(f"promptcache.cli.serve.{name}", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setattr("promptcache.cli.serve.find_spec", lambda name: name)
    real = socket.getaddrinfo

    def look_up(host: str, *more: Any, **options: Any) -> Any:
        if host == "nosuchhost.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    fix = "name an address of this machine and a free port\n"
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        found = _serve("--port", port, *ray)
    reasons = {
        "nosuchhost.invalid": "Name or service not known",
        "two..dots.invalid": "not the name of a host",
        "192.0.2.1": "cannot assign requested address",
    }

    assert found == (3, f"error: --host 127.0.0.1 --port {port}: address already in use; {fix}")
    for host, reason in reasons.items():
        refused = _serve("--host", host, "--insecure", "--port", "8001", *ray)
        assert refused == (3, f"error: --host {host} --port 8001: {reason}; {fix}")


def test_modules_stay_within_the_memory_of_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--memory`, the store holds no more, and requests are answered all the same."""
    engines: list[Engine] = []
    monkeypatch.setattr("promptcache.server.create_app", lambda engine, *_, **__: engines.append(engine))
    monkeypatch.setattr("promptcache.server.serve", lambda *_, **__: True)

    code, errors = _serve("--schema", str(TRAVEL), "--memory", "300 KiB", "--port", "0")

    assert code == 0, errors
    (engine,) = engines
    engine.warm()
    engine.generate('<prompt schema="travel"><miami/>What is the best dish of Miami?</prompt>', max_new_tokens=2)
    assert 0 < engine.store.nbytes() <= 300 * 2**10


def test_server_ends_when_the_worker_is_dead(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three failed steps the server ends by itself, for whatever restarts it."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("on purpose")

    urls: queue.Queue[str] = queue.Queue()
    with ThreadPoolExecutor() as threads:
        made = create_app(engine)
        ended = threads.submit(serve, made, host="127.0.0.1", port=0, started=urls.put)
        with httpx.Client(base_url=urls.get(timeout=30), headers={"connection": "close"}) as client:
            wait_until(lambda: client.get("/health").status_code == 200)
            monkeypatch.setattr(Batch, "step", fail)
            found = [client.post(CHATS, json=CHAT).status_code for _ in range(3)]
        assert ended.result(30) is False

    assert found[:2] == [500, 500]


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The command ends with exit code 3 and the reason, before it listens."""
    (tmp_path / "file").touch()

    for store in ("ftp://127.0.0.1:1/x", str(tmp_path / "file" / "kept")):
        code, errors = _serve("--schema", str(TRAVEL), "--port", "0", "--store", store)

        assert code == 3, errors
        assert f"{store}: cannot write: " in errors


def test_sigterm_ends_the_wait_for_another_replica(tmp_path: Path) -> None:
    """A server that waits for the encodings of another replica ends at SIGTERM, although it never gets them."""
    engine = engine_with(store=StoreConfig(folder=tmp_path / "kept"))
    with (
        engine.store.claim([engine.keys("travel")], 0),
        server_process("--store", str(tmp_path / "kept")) as (running, url),
    ):
        assert httpx.get(f"{url}/health").json() == {"status": "starting"}
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0


def test_sigterm_ends_warming(tmp_path: Path) -> None:
    """A server that encodes very many pairs for a client ends at SIGTERM, and the client gets 503 `draining`."""
    modules = "".join(f'<module name="m{number}">The dish {number} is crab.</module>' for number in range(1000))
    (tmp_path / "keys").write_text("root\n", encoding="utf-8")
    with (
        server_process("--admin-key-file", str(tmp_path / "keys")) as (running, url),
        ThreadPoolExecutor(1) as threads,
        httpx.Client(base_url=url, headers={"authorization": "Bearer root"}, timeout=120) as client,
    ):
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
        document = f'<schema name="s">{modules}</schema>'
        assert client.put("/v1/schemas/s", content=document, headers=XML).status_code == 201
        warming = threads.submit(client.post, "/v1/schemas/s/warm", params={"pairs": True})
        with pytest.raises(TimeoutError):
            warming.result(1)
        running.send_signal(signal.SIGTERM)

        assert running.wait(30) == 0
        assert (warming.result().status_code, warming.result().json()["error"]["code"]) == (503, "draining")


BLOCKED = """
from threading import Event
from promptcache import Engine
from promptcache.server import create_app, serve

app = create_app(Engine.from_pretrained("demo"))

@app.get("/wait")
def wait():
    print("blocked", flush=True)
    Event().wait()

serve(app, host="127.0.0.1", port=0, started=lambda url: print(url, flush=True))
"""


def is_ending(url: str) -> bool:
    """Whether a server drains, or takes no connections any more."""
    try:
        return httpx.get(f"{url}/health").status_code == 503
    except httpx.TransportError:
        return True


def test_a_second_signal_ends_a_server_whose_threads_go_on() -> None:
    """Two signals end a server at once, although the thread of a request never ends."""
    with (
        subprocess.Popen([sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, text=True) as running,
        ThreadPoolExecutor(1) as threads,
    ):
        assert running.stdout is not None
        url = running.stdout.readline().strip()
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
        threads.submit(httpx.get, f"{url}/wait", timeout=60)
        try:
            assert running.stdout.readline() == "blocked\n"
            running.send_signal(signal.SIGTERM)
            wait_until(lambda: is_ending(url))
            running.send_signal(signal.SIGTERM)

            assert running.wait(20) == -signal.SIGTERM
        finally:
            running.kill()


def test_server_freezes_its_objects(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects of libraries and schemas take no part in the garbage collections of a running server."""
    app, found = create_app(engine), []
    monkeypatch.setattr(DrainingServer, "run", lambda _: found.append(gc.get_freeze_count()))
    gc.unfreeze()
    try:
        serve(app, host="127.0.0.1", port=0, started=lambda _: None)
    finally:
        gc.unfreeze()
    assert found[0] > 100_000


def test_sigterm_finishes_running_answers() -> None:
    """Under SIGTERM running streams get their last event, new requests and health are 503, and the exit code is 0."""
    body = {**CHAT, "stream": True, "min_tokens": 300, "max_tokens": 300}  # they end long after the signal
    with server_process() as (running, url):
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
        with (
            httpx.Client(base_url=url, timeout=30) as client,
            client.stream("POST", CHATS, json=body) as answer,
        ):
            lines = answer.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(f"{url}/health").status_code == 503)
            health = httpx.get(f"{url}/health").json()
            refused = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
            data = [line for line in lines if line.startswith("data: ")]
        assert running.wait(60) == 0

    assert health == {"status": "draining"}
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert data[-1] == "data: [DONE]"
    assert json.loads(data[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
