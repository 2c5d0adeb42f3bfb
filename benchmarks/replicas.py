"""Real replicas for the simulation of many: processes with a server, measured over HTTP.

A run of this file is one replica: `promptcache serve` without history, which the simulation does not have.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle, groupby, islice
from pathlib import Path

import httpx
import torch

from benchmarks.fleet import EngineCosts, FleetRequest, Traffic, num_distinct, traffic_of
from promptcache.bench.server_process import server_process
from promptcache.diagnostics import ServiceError
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.language import Schema, print_schema
from promptcache.runtime import WarmReport
from promptcache.server import ServerSettings, create_app, serve

_WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "with", "as", "it", "by", "from", "at")
_ANSWER_S = 300.0
_DECODED = (24, 88)  # tokens of a short and of a long answer
_ROWS = 8
_IDLE_S = 0.25
_LEAST_STEP_S = 1e-6  # noise could give less
_NUM_MODULES = 8
_MANY = 10**6  # requests to other replicas; far fewer are sent
_SHORTER = 8  # how much shorter modules and prompts are that show the costs which do not depend on length


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """How a replica is started.

    Attributes:
        folder: Has `schemas/*.xml`, and `kv`, the store.
        memory_bytes: Memory for modules; None is no limit.
        threads: Threads of torch; None is its own choice.
    """

    model: str
    folder: Path
    memory_bytes: int | None = None
    threads: int | None

    def engine(self) -> Engine:
        """Load the model with the store."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        config = StoreConfig(folder=self.folder / "kv", memory_bytes=self.memory_bytes)
        return Engine.from_pretrained(self.model, store=config, history_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """What a client saw of a request.

    Attributes:
        ttft_s: Seconds of the whole answer, less those of decoding.
        decode_s: As the server reports it.
        prefill_s: As the server reports it.
        num_new: Tokens that were prefilled.
        num_modules: Its modules.
        num_hits: Those that were in memory.
    """

    ttft_s: float
    decode_s: float
    prefill_s: float
    num_new: int
    num_modules: int
    num_hits: int


def schema(name: str, num_modules: int, num_words: int) -> Schema:
    """Return a schema whose modules have random words. Other names have other words."""
    made = Schema(name)
    for number in range(num_modules):
        made = made.module(f"m{number}", words(f"{name}/{number}", num_words))
    return made


def words(seed: str, count: int) -> str:
    """Return words in random order; the same for the same seed.

    Texts of one length have the same words and the same first word, so they have one number of tokens, as in the
    simulation.
    """
    first, *others = islice(cycle(_WORDS), count)
    random.Random(seed).shuffle(others)
    return " ".join([first, *others])


def write_schemas(folder: Path, traffic: Traffic) -> None:
    """Write the schemas that requests of this traffic use."""
    (folder / "schemas").mkdir()
    for number in range(traffic.num_schemas):
        text = print_schema(schema(f"s{number}", traffic.num_modules, traffic.module_tokens))
        (folder / "schemas" / f"{number}.xml").write_text(text, encoding="utf-8")


@contextmanager
def running(settings: ReplicaSettings, count: int) -> Iterator[list[str]]:
    """Start replicas one after the other, and yield their URLs once they are ready.

    Raises:
        ServiceError: A replica did not start.
    """
    given = json.dumps({**asdict(settings), "folder": str(settings.folder)})
    command = ["benchmarks.replicas", given]
    logs = [settings.folder / f"replica-{number}.log" for number in range(count)]
    with ExitStack() as stack:
        ports = [stack.enter_context(server_process(command, log))[0] for log in logs]
        yield [f"http://127.0.0.1:{port}" for port in ports]


def measure(homes: Sequence[str], traffic: Traffic, after_round: Callable[[], object]) -> list[AnsweredRequest]:
    """Send the requests of a traffic at their times, and return what became of them, in order of arrival.

    Args:
        homes: The URL of the replica of each schema.
        after_round: Called after each round, while the replicas are idle.
    """

    async def run(requests: Sequence[tuple[int, FleetRequest]]) -> list[AnsweredRequest]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(timeout=_ANSWER_S, limits=limits) as client:
            started = time.perf_counter() - requests[0][1].arrived_at

            async def send(number: int, request: FleetRequest) -> AnsweredRequest:
                await asyncio.sleep(started + request.arrived_at - time.perf_counter())
                text = words(f"{traffic.seed}/{number}", traffic.new_tokens)
                return await _ask(client, homes[request.schema], request, text, traffic.answer_tokens)

            return list(await asyncio.gather(*(send(*each) for each in requests)))

    answers: list[AnsweredRequest] = []
    for _, requests in groupby(enumerate(traffic_of(traffic)), lambda each: traffic.round_of(each[0])):
        answers += asyncio.run(run([*requests]))
        after_round()
    return answers


async def _ask(
    client: httpx.AsyncClient, url: str, request: FleetRequest, text: str, num_tokens: int
) -> AnsweredRequest:
    names = [f"m{module}" for module in request.modules]
    used = "".join(f"<{name}/>" for name in names)
    limit = {"min_tokens": num_tokens, "max_tokens": num_tokens, "temperature": 0}
    body = {"prompt": f'<prompt schema="s{request.schema}">{used}<user>{text}</user></prompt>', **limit}
    started = time.perf_counter()
    response = await client.post(f"{url}/v1/prompts", json=body)
    seconds = time.perf_counter() - started
    if response.status_code != 200:
        raise ServiceError(f"a replica answered {response.status_code}: {response.text}")
    answer = response.json()
    usage, timing = answer["usage"], answer["prompt_cache"]["timing"]
    reused = [each["source"] for each in answer["prompt_cache"]["modules"] if each["module"] in names]
    return AnsweredRequest(
        ttft_s=seconds - timing["decode_s"],
        decode_s=timing["decode_s"],
        prefill_s=timing["prefill_s"],
        num_new=usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"],
        num_modules=len(names),
        num_hits=reused.count("hit"),
    )


class Calibration:
    """Measures the costs of one replica on this machine, as often as wanted.

    Encoding and loading are measured in this process, and the others over HTTP.

    Attributes:
        traffic: With the tokens that its texts have for this model.
    """

    def __init__(self, settings: ReplicaSettings, traffic: Traffic, urls: Sequence[str]) -> None:
        """Encode modules.

        Args:
            settings: Of the replica.
            traffic: Its texts, in words.
            urls: Of the replica, which has memory for all modules, and of others on this machine.
        """
        self._settings = settings
        self._words = traffic
        self._url, *self._others = urls
        self._engine = settings.engine()
        _, encoded = self._warm(self._engine)
        self._encode_token_s = encoded.seconds / encoded.num_encoded_tokens
        _, (answered, *_) = self._both_lengths(rounds=1)
        self.traffic = replace(
            traffic,
            module_tokens=round(encoded.num_encoded_tokens / _NUM_MODULES),
            new_tokens=answered.num_new,
        )

    def costs(self, rounds: int = 12, others_rate: float = 0.0) -> EngineCosts:
        """Return the costs as they are now.

        Args:
            rounds: Requests of each length for the costs of a prompt. Half as many measure the costs of a step.
            others_rate: Requests per second that each of the other replicas gets meanwhile.
        """
        load = replace(self._words, rate=others_rate * len(self._others), num_requests=_MANY, num_rounds=1)
        with _busy(self._others, load):
            return self._costs(rounds)

    def _costs(self, rounds: int) -> EngineCosts:
        traffic = self.traffic
        load_s, bytes_per_s = self._load_costs()
        short, long = self._both_lengths(rounds)
        step_words = replace(self._words, module_tokens=traffic.module_tokens)
        step_s, row_s, read_s = _step_costs(self._url, step_words, _requests_apart(traffic), max(1, rounds // 2))
        mean = statistics.fmean
        token_s = (mean(each.prefill_s for each in long) - mean(each.prefill_s for each in short)) / (
            long[0].num_new - short[0].num_new
        )
        pass_s = step_s + read_s * traffic.num_used * traffic.module_tokens
        rest_s = mean(each.ttft_s for each in long) - pass_s - token_s * long[0].num_new
        return EngineCosts(
            request_s=max(0.0, rest_s),
            step_s=step_s,
            row_s=row_s,
            read_token_s=read_s,
            prefill_token_s=max(0.0, token_s),
            encode_token_s=self._encode_token_s,
            load_s=load_s,
            load_bytes_per_s=bytes_per_s,
            token_bytes=self._engine.model.shape.token_bytes,
        )

    def _warm(self, engine: Engine) -> Sequence[WarmReport]:
        """Encode or load a schema with short modules, and one with modules of the traffic's length."""
        sizes = (max(1, self._words.module_tokens // _SHORTER), self._words.module_tokens)
        for number, size in enumerate(sizes):
            engine.add_schema(schema(f"calibration-{number}", _NUM_MODULES, size))
        return engine.warm()

    def _load_costs(self) -> tuple[float, float]:
        """Return the seconds to load a module besides its bytes, and loaded bytes per second."""
        store = StoreConfig(folder=self._settings.folder / "kv", memory_bytes=self._settings.memory_bytes)
        short, long = self._warm(Engine(self._engine.model, self._engine.tokenizer, store=store, history_bytes=0))
        more_bytes = long.nbytes - short.nbytes
        seconds = max(1e-9, long.seconds - short.seconds)
        return max(0.0, short.seconds - short.nbytes * seconds / more_bytes) / _NUM_MODULES, more_bytes / seconds

    def _both_lengths(self, rounds: int) -> tuple[list[AnsweredRequest], list[AnsweredRequest]]:
        """Ask with short and with whole texts in turn, one request at a time, after one of each that warms up.

        Before each one the replica is idle, as between requests that arrive at random: what it needs is not in the
        caches of the processor then.
        """
        lengths = (max(1, self._words.new_tokens // _SHORTER), self._words.new_tokens)
        found: tuple[list[AnsweredRequest], list[AnsweredRequest]] = ([], [])
        request = _requests_apart(self._words)[0]

        async def run() -> None:
            async with httpx.AsyncClient(timeout=_ANSWER_S) as client:
                for number in range(rounds + 1):
                    for length, answers in zip(lengths, found, strict=True):
                        await asyncio.sleep(_IDLE_S)
                        answers.append(await _ask(client, self._url, request, words(f"length/{number}", length), 2))

        asyncio.run(run())
        return found[0][1:], found[1][1:]


@contextmanager
def calibrating(settings: ReplicaSettings, traffic: Traffic, num_replicas: int = 1) -> Iterator[Calibration]:
    """Start replicas for a calibration, and yield this. The folder gets the schemas of the traffic.

    Args:
        num_replicas: The one that is measured, and others that are busy meanwhile.
    """
    write_schemas(settings.folder, traffic)
    with running(settings, num_replicas) as urls:
        yield Calibration(settings, traffic, urls)


@contextmanager
def _busy(urls: Sequence[str], traffic: Traffic) -> Iterator[None]:
    """Send requests of a traffic to replicas in turn, at its rate, until the context ends."""
    if not traffic.rate:
        yield
        return
    ended = threading.Event()

    async def send() -> None:
        async with httpx.AsyncClient(timeout=_ANSWER_S) as client:
            started, asked = time.perf_counter(), []
            for number, request in enumerate(traffic_of(traffic)):
                await asyncio.sleep(started + request.arrived_at - time.perf_counter())
                if ended.is_set():
                    break
                text = words(f"load/{number}", traffic.new_tokens)
                one = _ask(client, urls[number % len(urls)], request, text, traffic.answer_tokens)
                asked.append(asyncio.create_task(one))
            await asyncio.gather(*asked)

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(asyncio.run, send())
        try:
            yield
        finally:
            ended.set()
        sending.result()


def _requests_apart(traffic: Traffic) -> list[FleetRequest]:
    """Return requests for different schemas. No two of their modules are adjacent, as after evictions, if possible."""
    apart = max(1, traffic.num_modules // traffic.num_used)
    modules = tuple(range(0, traffic.num_used * apart, apart))
    return [FleetRequest(0.0, row % traffic.num_schemas, modules, traffic.new_tokens) for row in range(_ROWS)]


def _step_costs(url: str, traffic: Traffic, requests: list[FleetRequest], rounds: int) -> tuple[float, float, float]:
    """Return the seconds of a forward pass, of a row that it decodes, and of a token of modules that it reads.

    One row, as many equal rows, and rows with modules of their own differ in one of these each.
    """
    count = len(requests)
    alone = requests[:1]
    one, equal, mixed = (_decode_s(url, traffic, each, rounds) for each in (alone, alone * count, requests))
    num_read = traffic.module_tokens * traffic.num_used
    num_more = traffic.module_tokens * num_distinct(requests) - num_read
    row_s = max(0.0, equal - one) / (count - 1)
    read_s = max(0.0, mixed - equal) / num_more if num_more else 0.0
    return max(_LEAST_STEP_S, one - row_s - num_read * read_s), row_s, read_s


def _decode_s(url: str, traffic: Traffic, requests: Sequence[FleetRequest], rounds: int) -> float:
    """Return the seconds of one step that decodes the requests together.

    Answers of two lengths differ in such steps only: each has the same part in which requests join.
    """

    async def run(num_tokens: int) -> list[AnsweredRequest]:
        async with httpx.AsyncClient(timeout=_ANSWER_S) as client:
            asked = (
                _ask(client, url, each, words(f"decode/{number}", traffic.new_tokens), num_tokens)
                for number, each in enumerate(requests)
            )
            return await asyncio.gather(*asked)

    def decode_s(num_tokens: int) -> float:
        return statistics.median(each.decode_s for each in asyncio.run(run(num_tokens)))

    decode_s(_DECODED[0])
    return statistics.fmean(decode_s(_DECODED[1]) - decode_s(_DECODED[0]) for _ in range(rounds)) / (
        _DECODED[1] - _DECODED[0]
    )


def main(settings: ReplicaSettings, port: int) -> None:
    """Serve until the process is stopped."""
    engine = settings.engine()
    for path in sorted((settings.folder / "schemas").glob("*.xml")):
        engine.add_schema(path)
    app = create_app(engine, ServerSettings(model="bench"))
    serve(app, host="127.0.0.1", port=port, started=lambda _url: None)


if __name__ == "__main__":
    text, _, port = sys.argv[1:]
    given = json.loads(text)
    main(ReplicaSettings(**{**given, "folder": Path(given["folder"])}), int(port))
