"""examples/scaling/nginx.conf, with nginx itself before two `promptcache serve` on one store.

`make test-slow` runs these tests if there is an nginx: `apt-get install nginx` on Debian.
"""

import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import CHAT, server_process, wait_until

SCHEMA_HEADER = "x-prompt-cache-schema"
TO_TRAVEL = {SCHEMA_HEADER: "travel"}
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
CONFIG = Path(__file__).parents[2] / "examples" / "scaling" / "nginx.conf"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine"),
]

WRAPPED = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    add_header x-upstream $upstream_addr always;
    include {folder}/promptcache.conf;
}}
"""
LONG = {**CHAT, "stream": True, "min_tokens": 300, "max_tokens": 300}


@dataclass(frozen=True)
class Fleet:
    """nginx before replicas."""

    url: str
    replicas: dict[str, subprocess.Popen[str]]  # the process of each replica by its address

    def client(self) -> httpx.Client:
        """Return a client that sets the header."""
        return httpx.Client(base_url=self.url, timeout=60, headers=TO_TRAVEL)

    def home(self, schema: str) -> str:
        """Return the address of the replica that answers requests of a schema."""
        answer = httpx.get(f"{self.url}/v1/models", headers={SCHEMA_HEADER: schema})
        return answer.headers["x-upstream"].split(", ")[-1]


@contextmanager
def _fleet(folder: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        (folder / "admins").write_text("root\n", encoding="utf-8")
        given = {"--store": "kv", "--schema-folder": "schemas", "--admin-key-file": "admins"}
        options = [word for option, name in given.items() for word in (option, str(folder / name))]
        processes = [stack.enter_context(server_process(*options)) for _ in range(2)]
        replicas = {url.removeprefix("http://"): process for process, url in processes}
        for address in replicas:
            wait_until(lambda address=address: _status(address) == 200, 60)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        text = CONFIG.read_text(encoding="utf-8").replace("listen 127.0.0.1:8000", f"listen 127.0.0.1:{port}")
        for number, address in enumerate(replicas, 1):
            assert f"server 127.0.0.1:800{number} " in text
            text = text.replace(f"server 127.0.0.1:800{number} ", f"server {address} ")
        (folder / "promptcache.conf").write_text(text, encoding="utf-8")
        (folder / "nginx.conf").write_text(WRAPPED.format(folder=folder), encoding="utf-8")
        command = [str(NGINX), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as nginx:
            try:
                wait_until(lambda: _status(f"127.0.0.1:{port}") == 200)
                yield Fleet(f"http://127.0.0.1:{port}", replicas)
            finally:
                nginx.terminate()


def _status(address: str) -> int | None:
    try:
        return httpx.get(f"http://{address}/health").status_code
    except httpx.TransportError:
        return None


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two replicas that stay."""
    with _fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Fleet]:
    """Two replicas that a test may end."""
    with _fleet(tmp_path) as made:
        yield made


def test_a_schema_meets_one_replica_and_schemas_are_spread(fleet: Fleet) -> None:
    """Requests with one header go to one replica, which has the modules in memory; others go to both."""
    homes = {name: {fleet.home(name) for _ in range(5)} for name in map(str, range(40))}
    with fleet.client() as client:
        answers = [client.post("/v1/chat/completions", json=CHAT) for _ in range(5)]
    used = {httpx.get(f"{fleet.url}/v1/models").headers["x-upstream"] for _ in range(30)}

    assert all(len(each) == 1 for each in homes.values())
    counts = [sum(address in each for each in homes.values()) for address in fleet.replicas]
    assert min(counts) >= 8
    assert {each.headers["x-upstream"] for each in answers} == {fleet.home("travel")}
    assert {each.json()["prompt_cache"]["num_encoded_tokens"] for each in answers} == {0}
    assert used == set(fleet.replicas)


def test_streams_are_not_buffered(fleet: Fleet) -> None:
    """Tokens arrive one by one while the others are generated."""
    times, started = [], time.perf_counter()
    with fleet.client() as client, client.stream("POST", "/v1/chat/completions", json=LONG) as answer:
        for chunk in answer.iter_raw():
            times += [time.perf_counter() - started] * chunk.count(b"data: ")

    assert len(times) > 300
    assert len(set(times)) > 100
    assert times[10] < times[-1] / 4


def test_changes_of_schemas_reach_all_replicas(fleet: Fleet) -> None:
    """A schema that is added or removed through nginx is served or forgotten by each replica."""

    def states() -> set[int]:
        return {httpx.get(f"http://{each}/v1/schemas/notes").status_code for each in fleet.replicas}

    admin = {"authorization": "Bearer root", "content-type": "application/xml"}
    notes = '<schema name="notes"><module name="rome">The river of Rome is Alba.</module></schema>'
    with fleet.client() as client:
        assert client.put("/v1/schemas/notes", content=notes, headers=admin).status_code == 201
        wait_until(lambda: states() == {200}, 10)
        assert client.delete("/v1/schemas/notes", headers=admin).status_code == 200
        wait_until(lambda: states() == {404}, 10)


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"method": "POST", "url": "/v1/check", "content": b"x" * 1_100_000}, 413, "body_too_large"),
    ({"method": "GET", "url": "/v1/models", "headers": {"x-long": "x" * 15_000}}, 400, "invalid_http"),
    ({"method": "GET", "url": "/" + "x" * 15_000}, 400, "invalid_http"),
    ({"method": "GET", "url": "/v1/models", "headers": {"host": ""}}, 400, "invalid_http"),
]


def test_refusals_of_nginx_have_the_form_of_the_server(fleet: Fleet) -> None:
    """What nginx refuses before a replica sees it is an error object, as a refusal of the server, also without a path."""
    for request, status, code in REFUSED:
        with fleet.client() as client:
            answer = client.request(**request)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
        assert answer.json()["error"]["code"] == code
    with socket.create_connection(("127.0.0.1", int(fleet.url.rpartition(":")[2]))) as connection:
        connection.sendall(b"hello there HTTP/1.1\r\n\r\n")
        raw = HTTPResponse(connection)
        raw.begin()
        assert (raw.status, json.loads(raw.read())["error"]["code"]) == (400, "invalid_http")


def test_a_draining_replica_is_passed_over_and_finishes_its_streams(mortal: Fleet) -> None:
    """After SIGTERM new requests are answered by the other replica, and the running stream gets its last event."""
    home = mortal.home("travel")
    (other,) = set(mortal.replicas) - {home}
    with mortal.client() as client, client.stream("POST", "/v1/chat/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        mortal.replicas[home].send_signal(signal.SIGTERM)
        wait_until(lambda: _status(home) == 503)
        answers = [httpx.post(f"{mortal.url}/v1/chat/completions", json=CHAT, headers=TO_TRAVEL)]
        answers += [httpx.post(f"{mortal.url}/v1/chat/completions", json=CHAT, headers=TO_TRAVEL)]
        last = [line for line in lines if line][-1]

    assert [each.status_code for each in answers] == [200, 200]
    assert [each.headers["x-upstream"] for each in answers] == [f"{home}, {other}", other]
    assert last == "data: [DONE]"


def test_requests_go_on_while_a_replica_is_killed_under_load(mortal: Fleet) -> None:
    """Requests during and after a kill are answered, the later ones by the other replica; without any, nginx refuses."""
    home = mortal.home("travel")
    (other,) = set(mortal.replicas) - {home}
    answers: list[httpx.Response] = []

    def ask() -> None:
        with mortal.client() as client:
            answers.extend(client.post("/v1/chat/completions", json=CHAT) for _ in range(15))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answers) >= 20)
    mortal.replicas[home].send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join()
    mortal.replicas[other].kill()
    mortal.replicas[other].wait()
    with mortal.client() as client:
        refused = client.post("/v1/chat/completions", json=CHAT)

    assert [each.status_code for each in answers] == [200] * 90
    assert {each.headers["x-upstream"] for each in answers} <= {home, f"{home}, {other}", other}
    assert answers[-1].headers["x-upstream"] == other
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replica")
