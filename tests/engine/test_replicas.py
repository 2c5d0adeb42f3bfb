"""Replicas on one URL: each module is encoded once in all, and a killed replica delays the others for a lease."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.process_work import NAMES, PROMPTS, ask_replica, die_while_encoding, engine, replica
from tests.kv.processes import context, finish, start
from tests.kv.s3 import BUCKET, S3Server, s3_server

URL = f"s3://{BUCKET}/kept"
GREEDY = {"do_sample": False, "max_new_tokens": 2}


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """Run an S3 server."""
    with s3_server() as server:
        server.empty()
        yield server


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_replicas_encode_each_module_once(kind: str, s3: S3Server, tmp_path: Path) -> None:
    """Cold replicas get requests at once, each with its own choices of modules: each module is encoded once in all."""
    url, options = (URL, s3.options()) if kind == "s3" else (f"file://{tmp_path}", {})
    made: list[str] = []
    replicas = [replica(url, options, made.append) for _ in range(3)]
    together = threading.Barrier(3)
    reference = engine(None)
    choose = random.Random(1)
    chosen = [[sorted(choose.sample(NAMES, choose.randint(1, 8))) for _ in range(5)] for _ in replicas]
    prompts = [[f'<prompt schema="long"><{"/><".join(names)}/>What?</prompt>' for names in each] for each in chosen]

    def ask(number: int) -> list[tuple[int, ...]]:
        together.wait(20)
        return [replicas[number].generate(prompt, **GREEDY).token_ids for prompt in prompts[number]]

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, range(3)))

    assert max(Counter(made).values()) == 1
    assert answers == [[reference.generate(prompt, **GREEDY).token_ids for prompt in each] for each in prompts]


@pytest.mark.process
@pytest.mark.slow
def test_processes_encode_each_module_once(s3: S3Server) -> None:
    """The same with two processes, whose requests come in random orders."""
    ready, go, made = (context().SimpleQueue() for _ in range(3))
    children = [start(ask_replica, URL, s3.options(), seed, ready, go, made) for seed in range(2)]
    for _ in children:
        ready.get()
    for _ in children:
        go.put(True)
    for child in children:
        finish(child)

    keys = []
    while not made.empty():
        keys.append(made.get())
    assert keys
    assert max(Counter(keys).values()) == 1


@pytest.mark.process
@pytest.mark.slow
def test_a_killed_replica_delays_the_others_for_a_lease(s3: S3Server) -> None:
    """A replica is killed while it encodes under a claim: the other has its answer within the lease."""
    lease_s, made = 4.0, list[str]()
    other = replica(URL, s3.options(), made.append, lease_s)
    expected = engine(None).generate(PROMPTS[0], **GREEDY).token_ids
    dying = context().SimpleQueue()
    process = start(die_while_encoding, URL, s3.options(), lease_s, dying)
    key = dying.get()
    process.kill()
    process.join()
    started = time.monotonic()

    answer = other.generate(PROMPTS[0], **GREEDY)

    assert answer.token_ids == expected
    assert made[0] == key
    assert lease_s <= time.monotonic() - started < lease_s + 10  # the machine may be busy
    assert answer.usage.faults == ()
