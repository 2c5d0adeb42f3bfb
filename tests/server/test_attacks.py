"""The server under attack, in a process of its own: it stays alive and small, and answers others.

Each attack has a short form and, marked `slow`, a form with bounds: `/livez` is fast throughout, the memory is bounded,
and a client that asks chats meanwhile waits for twice its idle time and one queue at most.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from fastapi import Request

from promptcache.diagnostics import QueueFull, SchemaError
from promptcache.language import limited_solver
from promptcache.server.errors import ClientGone
from promptcache.server.pools import WorkPool
from tests.language.documents import checked
from tests.language.test_sizes import random_clauses, schema_of
from tests.server.conftest import CHAT, CHATS, server_process, wait_until

_LOG = logging.getLogger(__name__)
_ALIVE_S = 0.5
"""The longest time that `/livez` may take in full attacks, on a machine without other work."""


def _slowness() -> float:
    """Return how many times slower a thread is here than alone on a core, at present."""
    started, cpu = time.perf_counter(), time.thread_time()
    while time.thread_time() - cpu < 0.3:
        pass
    return float(os.environ.get("PROMPTCACHE_SLOWNESS", "1")) * (time.perf_counter() - started) / 0.3


class Victim:
    """A server process under attack: the times that `/livez` and chats took, its largest memory, the slowness then."""

    def __init__(self, url: str, pid: int, log: Path) -> None:
        self.url = url
        self.alive_s: list[float] = []  # infinity where it failed
        self.chats_s: list[float] = []
        self.max_rss = 0
        self.slowness = 1.0
        self._process = psutil.Process(pid)
        self._log = log
        place = urlsplit(url)
        self._address = (place.hostname or "", place.port or 0)

    @property
    def num_log_bytes(self) -> int:
        """Size of its log."""
        return self._log.stat().st_size

    @property
    def rss(self) -> int:
        """Its memory in bytes."""
        return self._process.memory_info().rss

    def connect(self, text: bytes = b"") -> socket.socket:
        """Return a connection on which a text was sent."""
        connection = socket.create_connection(self._address, timeout=30)
        connection.sendall(text)
        return connection

    def post(self, path: str, body: bytes, kind: str = "application/json") -> httpx.Response:
        """Return the answer to a body."""
        return httpx.post(f"{self.url}{path}", content=body, headers={"content-type": kind}, timeout=300)

    def post_and_leave(self, path: str, body: bytes, kind: str = "application/json") -> None:
        """Send a body, and close the connection at once."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.connect(head.encode() + body).close()

    def chat_s(self) -> float:
        """Return the time of a chat."""
        started = time.perf_counter()
        assert httpx.post(f"{self.url}/v1/chat/completions", json=CHAT, timeout=300).status_code == 200
        return time.perf_counter() - started

    @contextmanager
    def bounded(self, queue_s: float, max_bytes: float) -> Iterator[None]:
        """Check an attack's memory, and its chats: they wait for `queue_s`, the time of what may be queued before."""
        idle_s = min(self.chat_s() for _ in range(3))
        before = self.rss
        with self.watched():
            yield
        figures = {"alive": max(self.alive_s), "chat": max(self.chats_s), "idle": idle_s, "queue": queue_s}
        _LOG.info("seconds: %s, slowness: %s, bytes: %s", figures, self.slowness, self.max_rss - before)
        assert max(self.alive_s) < _ALIVE_S * self.slowness
        assert max(self.chats_s) < self.slowness * (2 * idle_s + queue_s)
        assert self.max_rss - before < max_bytes

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Ask for `/livez` all the time, each time on a new connection, and for one chat after another."""
        end = threading.Event()

        def chat() -> None:
            while True:  # one at least
                self.chats_s.append(self.chat_s())
                if end.wait(0.1):
                    return

        def ask() -> None:
            while not end.wait(0.02):
                started = time.perf_counter()
                try:
                    with self.connect(
                        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                    ) as connection:
                        alive = b"alive" in b"".join(iter(lambda: connection.recv(4096), b""))
                except OSError:
                    alive = False
                self.alive_s.append(time.perf_counter() - started if alive else float("inf"))
                self.max_rss = max(self.max_rss, self.rss)

        self.alive_s, self.chats_s, self.max_rss = [], [], 0
        with ThreadPoolExecutor(2) as threads:
            asking = [threads.submit(each) for each in (ask, chat)]
            try:
                yield
            finally:
                self.slowness = max(_slowness(), 1.0)
                end.set()
        for each in asking:
            each.result()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A server with few connections, fewer files than the attacks need, and small limits of the queue."""
    with attacked(tmp_path_factory.mktemp("small"), "--max-connections", "128", soft_files=256) as victim:
        yield victim


@contextmanager
def attacked(tmp_path: Path, *options: str, soft_files: int = 1024) -> Iterator[Victim]:
    """Run a server that is ready."""
    log = tmp_path / "log"
    with server_process(*options, soft_files=soft_files, log=log) as (running, url):
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
        yield Victim(url, running.pid, log)


def _burst(victim: Victim, num: int, stack: ExitStack) -> None:
    """Open connections that send nothing. Most of them are closed."""
    for _ in range(num):
        with suppress(OSError):
            stack.enter_context(victim.connect())


HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


@pytest.mark.parametrize("text", [b"", b"GET /li", HALF], ids=["silent", "half a head", "half a body"])
def test_a_flood_of_silent_connections(small: Victim, text: bytes) -> None:
    """With more of them than files, the oldest are closed, others are answered, and the log stays small."""
    before = small.num_log_bytes
    with ExitStack() as stack:
        silent = [stack.enter_context(small.connect(text)) for _ in range(400)]
        assert httpx.get(f"{small.url}/livez", timeout=30).status_code == 200
        small.chat_s()
        with suppress(ConnectionError):
            assert silent[0].recv(100) == b""
    assert small.num_log_bytes - before < 200_000


def test_idle_connections_do_not_refuse_others(small: Victim) -> None:
    """Connections that were opened together and are idle after an answer are closed until the limit holds."""
    with ExitStack() as stack:
        idle = [stack.enter_context(small.connect()) for _ in range(200)]
        for each in idle:
            with suppress(OSError):
                each.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with httpx.Client(base_url=small.url) as client:
            assert [client.get("/v1/models").status_code for _ in range(3)] == [200] * 3


@pytest.mark.slow
def test_a_long_flood_of_silent_connections(tmp_path: Path) -> None:
    """1,200 connections beside 1,024 files, again and again for 15 seconds."""
    with attacked(tmp_path) as victim:
        started = time.perf_counter()
        with ExitStack() as stack:
            _burst(victim, 1200, stack)
            victim.chat_s()
        queue_s = time.perf_counter() - started
        with victim.bounded(queue_s, max_bytes=100e6):
            for _ in range(15):
                with ExitStack() as stack:
                    _burst(victim, 1200, stack)
                    time.sleep(1)
        assert victim.num_log_bytes < 10_000_000


CHECK = schema_of(random_clauses(230, 1)).encode()
FAULTS = b'{"model":"demo","messages":[],"prompt_cache":{"use":[' + b",".join([b"1"] * 340_000) + b"]}}"
SPACES = b'{"model":"demo","max_tokens":1,"messages":[{"role":"user","content":"%s"}]}' % (b" " * 1_000_000)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Large bodies, which clients send at the same time."""

    path: str
    body: bytes
    found: set[int | str]  # statuses, or codes of errors
    few: int
    many: int
    queue: int  # how many of them may be worked on before a chat
    max_bytes: tuple[float, float]  # the memory that few and many of them may take

    def send(self, victim: Victim, num: int) -> None:
        """Send bodies, and check what they get."""
        kind = "application/xml" if self.body is CHECK else "application/json"
        with ThreadPoolExecutor(num) as threads:
            answers = list(threads.map(lambda _: victim.post(self.path, self.body, kind), range(num)))
        assert {
            each.status_code if self.body is CHECK else each.json()["error"]["code"] for each in answers
        } == self.found


ATTACKS = {
    "hard checks": Attack(
        path="/v1/check", body=CHECK, found={200, 429}, few=60, many=60, queue=17, max_bytes=(200e6, 200e6)
    ),
    "many faults": Attack(
        path=CHATS, body=FAULTS, found={"invalid_value"}, few=8, many=40, queue=40, max_bytes=(300e6, 500e6)
    ),
    "large texts": Attack(
        path=CHATS, body=SPACES, found={"context_length_exceeded"}, few=6, many=24, queue=24, max_bytes=(200e6, 300e6)
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_bodies_that_take_long(small: Victim, attack: Attack) -> None:
    """They are refused, or answered as far as the queue goes; the memory stays, and a chat is answered."""
    before = small.rss
    attack.send(small, attack.few)
    assert small.rss - before < attack.max_bytes[0]
    small.chat_s()


def test_hard_checks_are_not_begun_for_clients_that_left(small: Victim) -> None:
    """They delay a chat by no more than one of them."""
    for _ in range(60):
        small.post_and_leave("/v1/check", CHECK, "application/xml")
    small.chat_s()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_many_bodies_that_take_long_block_nobody(tmp_path: Path, attack: Attack) -> None:
    """Chats wait for one queue of them at most; of clients that leave, for two of them."""
    with attacked(tmp_path) as victim:
        started = time.perf_counter()
        victim.post(attack.path, attack.body, "application/xml" if attack.body is CHECK else "application/json")
        answer_s = time.perf_counter() - started
        if attack.body is CHECK:
            with victim.bounded(queue_s=2 * answer_s, max_bytes=attack.max_bytes[1]):
                for _ in range(60):
                    victim.post_and_leave(attack.path, CHECK, "application/xml")
                victim.chat_s()
        with victim.bounded(queue_s=attack.queue * answer_s, max_bytes=attack.max_bytes[1]):
            attack.send(victim, attack.many)


class _Requests:
    """Requests for a pool with one thread, whose work ends at `go_on`; two of them may wait."""

    def __init__(self) -> None:
        self.pool, self.go_on, self.begun = WorkPool(1, 2, "documents"), threading.Event(), list[str]()

    def start(self, name: str) -> tuple[asyncio.Task[bool], asyncio.Event]:
        """Send a request, whose client leaves at the event."""
        left = asyncio.Event()

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        def work() -> bool:
            self.begun.append(name)
            return self.go_on.wait(60)

        return asyncio.create_task(self.pool.run(Request({"type": "http"}, receive), work)), left


def test_work_for_clients_that_have_left_is_not_begun() -> None:
    """A client that leaves before or while it waits loses its place; a client that leaves later gets its work done."""

    async def ask() -> None:
        requests = _Requests()
        gone, leave = requests.start("0")
        leave.set()
        with pytest.raises(ClientGone):
            await gone
        (running, leave_running), (waiting, leave_waiting), (last, _) = map(requests.start, "123")
        await asyncio.sleep(0.02)
        leave_waiting.set()
        leave_running.set()
        with pytest.raises(ClientGone):
            await waiting
        requests.go_on.set()
        assert [await running, await last] == [True, True]
        assert requests.begun == ["1", "3"]

    asyncio.run(ask())


def test_a_full_queue_refuses() -> None:
    """Above the limit of waiting requests the next one is refused at once, and the others are not."""

    async def ask() -> None:
        requests = _Requests()
        tasks = [requests.start(name)[0] for name in "012"]
        await asyncio.sleep(0.02)
        with pytest.raises(QueueFull, match="2 documents wait, and the limit is 2"):
            await requests.start("3")[0]
        requests.go_on.set()
        assert [await each for each in tasks] == [True] * 3

    asyncio.run(ask())


def test_requests_share_one_budget_of_the_solver() -> None:
    """All questions of a check together take no more steps than the limit, and the fault has the limit."""
    with limited_solver(100_000), pytest.raises(SchemaError, match="more than 100,000 steps"):
        checked(CHECK.decode())
