"""Load on a server: requests over shared modules, and clients that send them. Nothing here loads a model.

In a closed loop each client sends its next request when it has an answer. In an open loop requests arrive at given
times, even if earlier ones have no answer yet. Latency then counts from the time at which a request was due. It
includes the wait of a request that is sent late.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple, TypeAlias

_TEXT = """
about access after always animal answer area arrive back basket before begin between border bring build button
calendar carry change choose clean coast collect corner country customer day decision delay device distance document
dream early effect energy every example family feature festival final folder forest garden general government group
happy history holiday human image industry join kind learn letter limit list machine market master member message
metal middle minute music nature never north number object offer order outside paper part passport people picture
place plan point power problem quarter railway reason region report result river room rule school season service
share simple skill source spring station story street student summer system table teacher thing ticket today tower
trade travel turn under union valley village voice wait water weather week window winter word work world yard year
young
"""
WORDS = tuple(_TEXT.split())
"""Common English words, from which texts are drawn."""

Tokenize: TypeAlias = Callable[[str], Sequence[int]]


class TargetName(StrEnum):
    """What can be measured."""

    ONE_AT_A_TIME = "one-at-a-time"
    SCHEDULER = "scheduler"
    HTTP = "http"
    RAY = "ray"
    TRANSFORMERS = "transformers"
    TRANSFORMERS_BATCHES = "transformers-batches"
    LLAMA = "llama-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSizes:
    """Sizes of the schema and of its requests.

    Attributes:
        num_modules: Modules of the schema.
        num_used: Modules of each request; None for a random number of them.
        module_tokens: Tokens of each module.
        new_tokens: Tokens of a request's own text.
        answer_tokens: Tokens of each answer.
    """

    num_modules: int
    num_used: int | None = None
    module_tokens: int
    new_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """A request: indices of its modules in order, its own text, and the seed of its sampling."""

    modules: tuple[int, ...]
    text: str
    seed: int


class AnswerTimes(NamedTuple):
    """One answer as its client saw it.

    Attributes:
        first_token_at: Time of `time.perf_counter`; None if no token came.
        error: Why the request failed; None if it was answered.
    """

    first_token_at: float | None
    num_tokens: int
    error: str | None = None


Ask: TypeAlias = Callable[[LoadRequest], AnswerTimes]
"""Sends one request, and returns when its answer has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One request that was sent: times of `time.perf_counter`, tokens of its answer, and its error if it failed.

    Attributes:
        due_at: When it was sent in a closed loop; when it should have been sent in an open one.
    """

    due_at: float
    first_token_at: float
    ended_at: float
    num_tokens: int
    error: str | None

    @property
    def ttft_s(self) -> float:
        """Seconds from the time at which it was due to its first token."""
        return self.first_token_at - self.due_at

    @property
    def token_s(self) -> float:
        """Seconds of each token after the first."""
        return (self.ended_at - self.first_token_at) / max(1, self.num_tokens - 1)


def draw_text(draw: random.Random, num_tokens: int, tokenize: Tokenize) -> str:
    """Return random English words, as few as have `num_tokens` tokens."""
    text = draw.choice(WORDS)
    while len(tokenize(text)) < num_tokens:
        text += " " + draw.choice(WORDS)
    return text


def draw_requests(seed: str, count: int, sizes: LoadSizes, tokenize: Tokenize) -> tuple[LoadRequest, ...]:
    """Return requests over random selections of modules. The same seed gives the same requests."""
    draw = random.Random(seed)

    def one() -> LoadRequest:
        num_used = sizes.num_used or draw.randint(1, sizes.num_modules)
        return LoadRequest(
            modules=tuple(sorted(draw.sample(range(sizes.num_modules), num_used))),
            text=draw_text(draw, sizes.new_tokens, tokenize),
            seed=draw.randrange(2**31),
        )

    return tuple(one() for _ in range(count))


def poisson_arrivals(seed: str, count: int, rate: float) -> tuple[float, ...]:
    """Return arrival times in seconds, with independent exponential gaps of mean `1 / rate`."""
    draw = random.Random(seed)
    return tuple(accumulate(draw.expovariate(rate) for _ in range(count)))


def closed_loop(ask: Ask, requests: Sequence[LoadRequest], num_clients: int) -> tuple[ServedRequest, ...]:
    """Send requests from a number of clients, each of which waits for its answer before it sends the next one."""
    with ThreadPoolExecutor(num_clients, thread_name_prefix="client") as clients:
        return tuple(clients.map(lambda request: _served(ask, request, time.perf_counter()), requests))


def open_loop(ask: Ask, requests: Sequence[LoadRequest], arrivals: Sequence[float]) -> tuple[ServedRequest, ...]:
    """Send each request at its arrival time, in seconds from now."""
    started = time.perf_counter()

    def due() -> Iterator[tuple[LoadRequest, float]]:
        for request, arrival in zip(requests, arrivals, strict=True):
            time.sleep(max(0.0, started + arrival - time.perf_counter()))
            yield request, started + arrival

    with ThreadPoolExecutor(max(1, len(requests)), thread_name_prefix="client") as clients:
        sent = [clients.submit(_served, ask, request, due_at) for request, due_at in due()]
        return tuple(each.result() for each in sent)


def _served(ask: Ask, request: LoadRequest, due_at: float) -> ServedRequest:
    times = ask(request)
    ended_at = time.perf_counter()
    return ServedRequest(
        due_at=due_at,
        first_token_at=ended_at if times.first_token_at is None else times.first_token_at,
        ended_at=ended_at,
        num_tokens=times.num_tokens,
        error=times.error,
    )
