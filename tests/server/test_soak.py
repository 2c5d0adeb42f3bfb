"""Many random requests at once over HTTP: every answer is the engine's own, and nothing is left at the end.

Clients ask plainly and in streams, under several keys, with and without modules. Some leave before their answer ends.
Meanwhile the schema is replaced and removed, and the budgets of memory and history are too small for all of it.
"""

import asyncio
import ctypes
import logging
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest

from promptcache import Engine, Prompt
from promptcache.kv import StoreConfig
from promptcache.server import ApiKeys, ServerSettings, create_app
from promptcache.server.gate import digests
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.server.conftest import CHATS, Served, choices, events, running, wait_until

_LOG = logging.getLogger(__name__)
MODEL, TOKENIZER = tiny_model(), ByteTokenizer()
KEYS = ("alice", "bob", "carol")
VERSIONS = ("1", "2", "3")
MEMORY_BYTES, HISTORY_BYTES = 2**18, 2**16
NUM_CLIENTS = 24
MAX_GROWTH_BYTES = 16 * 2**20
"""Growth of the process between a fifth and the end of 10,000 requests: a leak of 2 kB a request is more."""

SCHEMA = """<schema name="s" version="{0}">Root {0}.
<module name="a">Text of <parameter name="p" length="8" default="none"/> goes on.</module>
<union name="u"><module name="c">The c of {0}.</module><module name="d">Some other d.</module></union></schema>"""
PLACE = "/v1/schemas/s"
USES: tuple[dict[str, Any], ...] = (
    {},
    {"a": {}},
    {"a": {"p": "some"}, "c": {}},
    {"a": {"p": "word"}, "d": {}},
    {"c": {}},
)
TURNS: tuple[tuple[str, ...], ...] = (("Go",), ("Go on, please. " * 5,), ("Go", "Yes", "And then?"), ("Ünö →",))


def messages(turns: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the messages of a chat."""
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(turns)]


@dataclass(frozen=True)
class Question:
    """A request with its answers: one for each version of the schema, or one under None."""

    body: dict[str, Any]
    answers: dict[str | None, tuple[str, str]]


def questions() -> list[Question]:
    """Return all questions with the answers of engines without history and limits."""
    found = []
    engines: dict[str | None, Engine] = {}
    for version in VERSIONS:
        engines[version] = Engine(MODEL, TOKENIZER, history=False)
        engines[version].add_schema(SCHEMA.format(version))
    plain = engines[VERSIONS[0]]
    for index, turns in enumerate(TURNS):
        length = 4 + 3 * index
        greedy = {"model": "tiny", "temperature": 0, "max_tokens": length}
        made = plain.generate(messages(turns), max_new_tokens=length, do_sample=False)
        body = {**greedy, "messages": messages(turns)}
        found.append(Question(body, {None: (made.text, str(made.finish_reason))}))
        for use in USES:
            prompt = Prompt.from_messages("s", messages(turns))
            for path, arguments in use.items():
                prompt = prompt.use(path, **arguments)
            answers: dict[str | None, tuple[str, str]] = {}
            for version in VERSIONS:
                made = engines[version].generate(prompt, max_new_tokens=length, do_sample=False)
                answers[version] = made.text, str(made.finish_reason)
            body = {**greedy, "messages": messages(turns), "prompt_cache": {"schema": "s", "use": use}}
            found.append(Question(body, answers))
    return found


def resident_bytes() -> int:
    """Return the resident bytes of this process, without those that the allocator keeps for later."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    return psutil.Process().memory_info().rss


@dataclass
class Load:
    """Random requests on a server."""

    served: Served
    questions: list[Question]
    total: int
    random: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)  # how many requests ended how
    rss: list[int] = field(default_factory=list)  # resident bytes of this process, at each hundredth of the requests

    async def run(self) -> None:
        """Send all requests, several at a time."""
        self._left = self.total
        async with httpx.AsyncClient(base_url=self.served.url, timeout=60) as client:
            await asyncio.gather(*(self._client(client) for _ in range(NUM_CLIENTS)))

    async def _client(self, client: httpx.AsyncClient) -> None:
        while self._left > 0:
            self._left -= 1
            if self._left % max(1, self.total // 100) == 0:
                self.rss.append(resident_bytes())
            draw = self.random.random()
            if draw < 0.02:
                await self._change(client)
            elif draw < 0.04:
                assert (await client.get("/metrics", headers=self._key("root"))).status_code == 200
            elif draw < 0.06:
                await self._bad(client)
            elif draw < 0.16:
                await self._leave(client)
            else:
                await self._ask(client)

    def _key(self, name: str | None = None) -> dict[str, str]:
        return {"authorization": f"Bearer {name or self.random.choice(KEYS)}"}

    async def _change(self, client: httpx.AsyncClient) -> None:
        """Replace the schema, or remove it and add it again."""
        admin = {**self._key("root"), "content-type": "application/xml"}
        if self.random.random() < 0.2:
            await client.delete(PLACE, headers=admin)
        made = await client.put(PLACE, content=SCHEMA.format(self.random.choice(VERSIONS)), headers=admin)
        assert made.status_code in (200, 201), made.text
        if self.random.random() < 0.5:
            assert (await client.post(f"{PLACE}/warm", headers=admin)).status_code in (200, 404)
        self.outcomes["changed"] += 1

    async def _bad(self, client: httpx.AsyncClient) -> None:
        body = {**self.random.choice(self.questions).body, "messages": "none"}
        response = await client.post(CHATS, json=body, headers=self._key())
        assert response.status_code == 400
        self.outcomes["bad"] += 1

    async def _leave(self, client: httpx.AsyncClient) -> None:
        """Close the connection before the answer has ended."""
        question = self.random.choice(self.questions)
        body = {**question.body, "max_tokens": 1000, "min_tokens": 1000}
        self.outcomes["left"] += 1
        if self.random.random() < 0.5:
            try:
                await asyncio.wait_for(client.post(CHATS, json=body, headers=self._key()), self.random.random() * 0.05)
            except TimeoutError:
                return
        number = self.random.randrange(6)
        async with client.stream("POST", CHATS, json={**body, "stream": True}, headers=self._key()) as answer:
            async for _ in answer.aiter_lines():
                number -= 1
                if number < 0:
                    break

    async def _ask(self, client: httpx.AsyncClient) -> None:
        """Ask and compare the answer."""
        question = self.random.choice(self.questions)
        stream, number = self.random.random() < 0.5, self.random.choice((1, 1, 1, 2))
        body = {**question.body, "stream": stream, "n": number}
        response = await client.post(CHATS, json=body, headers=self._key())
        if response.status_code != 200:
            code = response.json()["error"]["code"]
            assert code in ("queue_full", "queue_tokens_full", "schema_not_found"), response.text
            self.outcomes[code] += 1
            return
        made = events(response.text)[-1] if stream else response.json()
        version = made["prompt_cache"]["schema_version"]
        assert version in question.answers
        assert choices(response, number) == [question.answers[version]] * number
        self.outcomes["answered"] += 1


@pytest.mark.parametrize("total", [150, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_soak(total: int) -> None:
    """Each answer is that of the version it names; no row, task, connection or memory is left at the end."""
    engine = Engine(MODEL, TOKENIZER, store=StoreConfig(memory_bytes=MEMORY_BYTES))
    engine.add_schema(SCHEMA.format(VERSIONS[0]))
    keys = ApiKeys(clients=digests(KEYS), admins=digests(["root"]))
    settings = ServerSettings(
        served_model_name="tiny", max_rows=6, max_waiting=32, tail_bytes=2**21, queue_timeout_s=300
    )
    app = create_app(engine, settings, keys=keys)
    started = time.perf_counter()
    for served in running(app):
        load = Load(served, questions(), total, random.Random(total))
        asyncio.run(load.run())
        service, tasks = served.state.service, served.server.server_state.tasks
        wait_until(lambda service=service: service.counts.num_running == service.counts.num_waiting == 0)
        wait_until(lambda tasks=tasks: not tasks)
        assert (service.state, service.counts.tail_bytes) == ("ready", 0)
        assert engine.store.nbytes() <= MEMORY_BYTES
    mib = [each >> 20 for each in load.rss[:: max(1, len(load.rss) // 12)]]
    _LOG.info("%d in %.0f s: %s; RSS in MiB %s", total, time.perf_counter() - started, dict(load.outcomes), mib)
    assert load.outcomes["answered"] > 0.7 * total
    if total >= 10_000:
        warm, end = load.rss[len(load.rss) // 5], max(load.rss[-len(load.rss) // 10 :])
        assert end - warm < MAX_GROWTH_BYTES
