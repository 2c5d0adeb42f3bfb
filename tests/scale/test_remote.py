"""A front over replicas in this process: answers are those of one engine, and replicas may end at any time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache import Engine
from promptcache.diagnostics import InvalidGeneration, PromptCacheError, PromptError, ServiceClosed
from promptcache.kv import Codec
from promptcache.language import Schema, module, open_schema, parse_prompt
from promptcache.runtime import Completion, Service, ServiceLimits, ServiceObserver, TokenLogprobs
from promptcache.scale import Attempt, TokenGroup
from promptcache.scale.remote import (
    RemoteEngine,
    RemoteRequest,
    RemoteService,
    ReplicaLost,
    pack,
    packed_digest,
    unpack,
)
from promptcache.scale.replica import ReplicaService
from promptcache.server import ApiKeys, ServerSettings, create_app
from promptcache.server.limits import digests
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.server.conftest import CHAT, TRAVEL, in_process

ADMIN = {"authorization": "Bearer root", "content-type": "application/xml"}
OLD = (
    Schema("s")
    .text("Root. ")
    .module("a", "The old text of a.")
    .module("b", "Text of b.")
    .collection("c", module("m", "Text of m."), module("n", "And n."))
)
NEW = Schema("s").text("Root. ").module("a", "A new and longer text of module a.").module("b", "Text of b.")
PROMPTS = (
    '<prompt schema="s"><a/>Go on</prompt>',
    '<prompt schema="s"><a/><b/>Go on, please</prompt>',
    '<prompt schema="s">Go</prompt>',
    '<prompt schema="s"><c><n/><m/></c>Go</prompt>',
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"do_sample": False},
    {"do_sample": False, "logprobs": 2},
    {"do_sample": False, "min_new_tokens": 5, "eos_token_id": [32, 101, 110]},
    {"do_sample": True, "temperature": 0.8, "seed": 7},
    {"do_sample": False, "no_repeat_ngram_size": 2},  # answered alone
    {"do_sample": False, "no_repeat_ngram_size": 2, "logprobs": 1},
    {"do_sample": False, "reuse": False},
)
MODEL, TOKENIZER = tiny_model(), ByteTokenizer()


def engine(*schemas: Schema) -> Engine:
    """Return an engine with schemas."""
    made = Engine(MODEL, TOKENIZER, history_bytes=0)
    for each in schemas:
        made.add_schema(each)
    return made


@dataclass
class Fleet:
    """Replicas in turn. Those that are to end do so after a number of tokens, each in one attempt.

    Attributes:
        attempts: What was sent.
    """

    replicas: Sequence[ReplicaService]
    deaths: list[int] = field(default_factory=list)
    attempts: list[tuple[RemoteRequest, Attempt]] = field(default_factory=list)

    async def send(self, request: RemoteRequest, attempt: Attempt) -> AsyncGenerator[TokenGroup]:
        """Send an attempt to the next replica."""
        replica = self.replicas[len(self.attempts) % len(self.replicas)]
        self.attempts.append((request, attempt))
        left, is_first = None, True
        async with aclosing(replica.answer(request, attempt)) as groups:
            async for group in groups:
                if is_first and self.deaths:
                    left = self.deaths.pop(0)
                is_first = False
                if left is not None and len(group.token_ids) >= left:
                    yield TokenGroup(token_ids=group.token_ids[:left], logprobs=group.logprobs[:left])
                    raise ReplicaLost("ended")
                left = None if left is None else left - len(group.token_ids)
                yield group


class Heard:
    """A listener that keeps the items that it gets."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ended = asyncio.Event()

    def __call__(self, item: int | TokenLogprobs | Completion | BaseException) -> None:
        """Keep an item."""
        self.items.append(item)
        if isinstance(item, Completion | BaseException):
            self.ended.set()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens that it got before the end."""
        return tuple(each if isinstance(each, int) else each.token_id for each in self.items[:-1])


async def ask(service: RemoteService, prompt: str, **options: Any) -> Heard:
    """Ask and wait for the end, as the server does: from another thread than that of the loop."""
    heard = Heard()
    await asyncio.to_thread(service.submit, parse_prompt(prompt), heard, **options)
    await asyncio.wait_for(heard.ended.wait(), 60)
    return heard


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[ReplicaService]]:
    """Two replicas, which know no schema yet."""
    made = [ReplicaService(engine(), ServiceLimits(max_rows=4)) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def run(fleet: Fleet, work: Callable[[RemoteEngine, RemoteService], Awaitable[None]], *schemas: Schema) -> None:
    """Run something on a front over replicas."""

    async def main() -> None:
        front = RemoteEngine(fleet.replicas[0].facts, fleet.send)
        front.set_schemas([pack(each) for each in schemas])
        service = front.service(ServiceLimits(), observer=ServiceObserver())
        await work(front, service)
        assert service.counts.num_running == 0

    asyncio.run(main())


@pytest.mark.law
@settings(max_examples=law_examples(0.15), deadline=None)
@given(
    prompt=st.sampled_from(PROMPTS),
    options=st.sampled_from(OPTIONS),
    length=st.integers(1, 12),
    deaths=st.lists(st.integers(0, 12), max_size=2),
)
def test_an_answer_is_that_of_one_engine_whatever_replicas_end(
    replicas: list[ReplicaService], prompt: str, options: dict[str, Any], length: int, deaths: list[int]
) -> None:
    """The listener gets each token once. Tokens, text, reason of the end and usage are those of a single engine."""
    service = engine(OLD).service()
    expected = Future[Completion]()

    def listen(item: Any) -> None:
        if isinstance(item, Completion):
            expected.set_result(item)

    service.submit(prompt, listen, max_new_tokens=length, **options)
    one = expected.result(60)
    service.close()

    async def work(_front: RemoteEngine, remote: RemoteService) -> None:
        heard = await ask(remote, prompt, max_new_tokens=length, **options)
        found = heard.items[-1]
        assert heard.token_ids == found.token_ids == one.token_ids
        assert (found.text, found.finish_reason, found.level) == (one.text, one.finish_reason, one.level)
        assert found.plan.selection.schema.name == "s"
        for name in ("num_reused_tokens", "num_history_tokens", "num_new_tokens", "num_generated_tokens"):
            assert getattr(found.usage, name) == getattr(one.usage, name)
        if "logprobs" in options:
            assert all(isinstance(each, TokenLogprobs) for each in heard.items[:-1])

    run(Fleet(replicas, deaths), work, OLD)


def test_a_resumed_stream_keeps_its_schema(replicas: list[ReplicaService]) -> None:
    """A stream that began with a schema ends with it, on a replica to which the schema is new."""
    fleet = Fleet(replicas)
    prompt = PROMPTS[1]
    expected = {
        each: engine(each).generate(prompt, max_new_tokens=20, do_sample=False).token_ids for each in (OLD, NEW)
    }

    async def work(front: RemoteEngine, service: RemoteService) -> None:
        fleet.deaths = [5]
        heard = Heard()
        await asyncio.to_thread(service.submit, parse_prompt(prompt), heard, max_new_tokens=20, do_sample=False)
        front.set_schemas([pack(NEW)])
        for each in replicas:
            each.warm([pack(NEW)])
        await asyncio.wait_for(heard.ended.wait(), 60)
        assert heard.items[-1].token_ids == expected[OLD]
        assert (await ask(service, prompt, max_new_tokens=20, do_sample=False)).items[-1].token_ids == expected[NEW]
        assert len({request.schema for request, _ in fleet.attempts}) == 2

    assert expected[OLD] != expected[NEW]
    run(fleet, work, OLD)


def test_replicas_get_schemas_that_they_lack_and_keep_two_versions() -> None:
    """A schema is sent once to a replica that does not know it, and old versions of it are forgotten."""
    made = engine()
    replica = ReplicaService(made, ServiceLimits())
    fleet = Fleet([replica])

    async def work(front: RemoteEngine, service: RemoteService) -> None:
        for number in range(4):
            front.set_schemas([pack(Schema("s").module("a", f"Text {number}."))])
            for _ in range(2):
                heard = await ask(service, PROMPTS[0], max_new_tokens=1)
                assert isinstance(heard.items[-1], Completion)
        assert [each.packed is not None for each, _ in fleet.attempts] == [False, True, False] * 4
        assert len(made.schemas) == 2

    run(fleet, work, OLD)
    replica.close()


def test_bad_requests_reach_no_replica(replicas: list[ReplicaService]) -> None:
    """Prompts and options are checked by the front, or by the replica before it computes anything."""
    fleet = Fleet(replicas)

    async def work(front: RemoteEngine, service: RemoteService) -> None:
        for error, prompt, options in (
            (PromptError, '<prompt schema="s"><nothing/></prompt>', {}),
            (InvalidGeneration, PROMPTS[0], {"max_tokens": 3}),
        ):
            with pytest.raises(error):
                await ask(service, prompt, **options)
        assert not fleet.attempts
        heard = await ask(service, PROMPTS[0], max_new_tokens=2, salt=3)
        assert isinstance(heard.items[-1], Exception)
        for change in (lambda: front.add_schema(NEW, keep=Codec.FULL), lambda: front.remove_schema("s")):
            with pytest.raises(PromptCacheError, match="deploy"):
                change()

    run(fleet, work, OLD)


def test_a_request_whose_replicas_all_end_says_so(replicas: list[ReplicaService]) -> None:
    """After two more attempts the request fails with an error after which clients may try again."""
    fleet = Fleet(replicas, [1, 1, 1])

    async def work(_front: RemoteEngine, service: RemoteService) -> None:
        heard = await ask(service, PROMPTS[0], max_new_tokens=9)
        assert isinstance(heard.items[-1], ServiceClosed)
        assert heard.items[-1].reason == "replica_lost"
        assert len(fleet.attempts) >= 3

    run(fleet, work, OLD)


def test_a_cancelled_request_ends_in_its_replica() -> None:
    """The rows of the replica are free again, and the listener gets nothing more."""
    replica = ReplicaService(engine(), ServiceLimits())

    async def work(_front: RemoteEngine, service: RemoteService) -> None:
        heard = Heard()
        asked = await asyncio.to_thread(service.submit, parse_prompt(PROMPTS[0]), heard, max_new_tokens=900)
        while not heard.items:
            await asyncio.sleep(0.01)
        asked.cancel()
        for _ in range(500):
            if not replica.num_running:
                break
            await asyncio.sleep(0.01)
        assert replica.num_running == 0
        assert not heard.ended.is_set()

    run(Fleet([replica]), work, OLD)
    replica.close()


def test_a_request_that_is_cancelled_while_it_is_submitted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that submits it cannot be stopped, so the request is cancelled after that."""
    replica = ReplicaService(engine(OLD), ServiceLimits())
    submitting, pause, tickets = threading.Event(), threading.Event(), list[Any]()
    submit = Service.submit

    def slow(self: Service, *words: Any, **options: Any) -> Any:
        submitting.set()
        pause.wait(60)
        tickets.append(submit(self, *words, **options))
        return tickets[0]

    monkeypatch.setattr(Service, "submit", slow)
    request = RemoteRequest(
        affinity="", prompt=parse_prompt(PROMPTS[0]), schema=packed_digest(pack(OLD)), packed=pack(OLD), options={}
    )

    async def work() -> None:
        groups = replica.answer(request, Attempt(max_new_tokens=900, seed=0))
        reading = asyncio.create_task(anext(groups))
        assert await asyncio.to_thread(submitting.wait, 60)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        pause.set()
        for _ in range(500):
            if tickets and tickets[0]._job.is_cancelled:
                break
            await asyncio.sleep(0.01)

    asyncio.run(work())
    assert tickets[0]._job.is_cancelled
    replica.close()


def test_a_closed_service_ends_its_requests(replicas: list[ReplicaService]) -> None:
    """Requests that run end with an error, and new ones are refused."""

    async def work(_front: RemoteEngine, service: RemoteService) -> None:
        heard = Heard()
        await asyncio.to_thread(service.submit, parse_prompt(PROMPTS[0]), heard, max_new_tokens=500)
        assert not await asyncio.to_thread(service.drain, 0.01)
        service.close()
        assert isinstance(heard.items[-1], ServiceClosed)
        with pytest.raises(ServiceClosed):
            await ask(service, PROMPTS[0])

    run(Fleet(replicas), work, OLD)


def test_packed_schemas_have_the_texts_of_their_files(tmp_path: Path) -> None:
    """A schema with files is the same in a process that cannot read them."""
    (tmp_path / "a.txt").write_text("Text of a file.", encoding="utf-8")
    (tmp_path / "s.xml").write_text('<schema name="s"><module name="a" src="a.txt"/></schema>', encoding="utf-8")
    schema = open_schema(tmp_path / "s.xml")
    packed = pack(schema)
    (tmp_path / "a.txt").unlink()

    assert unpack(packed) == schema


def test_a_server_runs_on_a_front() -> None:
    """Chats, streams, errors, plans and metrics are those of a server with the model in it."""
    made = Engine.from_pretrained("demo", history_bytes=0)
    replica = ReplicaService(made, ServiceLimits())
    fleet = Fleet([replica], [3])

    async def work(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert len(fleet.attempts) == 3  # without its schema, then a replica that ends, then the rest
        streamed = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        wrong = {**CHAT, "prompt_cache": {"use": ["maimi"]}}
        refused = await client.post("/v1/chat/completions", json=wrong)
        put = await client.put("/v1/schemas/travel", content=TRAVEL.read_text(), headers=ADMIN)
        warmed = await client.post("/v1/schemas/travel/warm", headers=ADMIN)
        models = (await client.get("/v1/models")).json()["data"]
        metrics = (await client.get("/metrics", headers=ADMIN)).text

        assert answer["choices"][0]["message"]["content"] == "The best dish of Miami is stone crab."
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert refused.status_code == 400
        assert "maimi" in refused.json()["error"]["message"]
        assert (put.status_code, "deploy" in put.text, warmed.status_code) == (400, True, 400)
        assert [each["id"] for each in models] == ["demo", "demo@travel"]
        assert "promptcache_requests_total" in metrics

    front = RemoteEngine(replica.facts, fleet.send)
    front.set_schemas([pack(open_schema(TRAVEL))])
    in_process(create_app(front, ServerSettings(model="demo", keys=ApiKeys(admins=digests(["root"])))), work)
    replica.close()
