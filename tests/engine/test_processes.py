"""Engines of several processes or replicas on one place: encodings are shared, and killed processes do no harm."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from promptcache import Completion, Engine
from promptcache.kv import FileTier
from tests.engine.process_work import NAMES, engine, replica, warm
from tests.kv.processes import context, finish, start
from tests.kv.s3 import BUCKET, S3Server, s3_server

GREEDY = {"do_sample": False, "max_new_tokens": 2}


@pytest.mark.process
def test_processes_that_warm_one_schema_do_the_work_once(tmp_path: Path) -> None:
    """Two processes that warm at the same moment encode together at most 1.1 times what one alone encodes."""
    alone = engine(None).warm()[0].num_encoded_tokens
    ready, go, counts = (context().SimpleQueue() for _ in range(3))
    children = [start(warm, str(tmp_path), ready, go, counts) for _ in range(2)]
    for _ in children:
        ready.get()
    for _ in children:
        go.put(True)
    for child in children:
        finish(child)

    total = sum(counts.get() for _ in children)
    assert alone <= total <= 1.1 * alone
    assert engine(tmp_path).warm()[0].num_encoded == 0


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """Run an S3 server."""
    with s3_server() as server:
        server.empty()
        yield server


@pytest.mark.parametrize("kind", ["s3", "folder"])
def test_cold_replicas_answer_like_one_engine(kind: str, s3: S3Server, tmp_path: Path) -> None:
    """Cold replicas get requests at once, each with its own choices of modules. A later one encodes nothing."""
    made: list[str] = []

    def start() -> Engine:
        tier = FileTier(tmp_path) if kind == "folder" else FileTier(f"s3://{BUCKET}/kept", options=s3.options())
        return replica(tier, made.append)

    replicas, together, reference = [start() for _ in range(3)], threading.Barrier(3), engine(None)
    choose = random.Random(1)
    chosen = [[sorted(choose.sample(NAMES, choose.randint(1, 8))) for _ in range(5)] for _ in replicas]
    prompts = [[f'<prompt schema="long"><{"/><".join(names)}/>What?</prompt>' for names in each] for each in chosen]

    def ask(number: int) -> list[Completion]:
        together.wait(20)
        return [replicas[number].generate(prompt, **GREEDY) for prompt in prompts[number]]

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, range(3)))
    num_made, later = len(made), start()

    assert [[answer.token_ids for answer in each] for each in answers] == [
        [reference.generate(prompt, **GREEDY).token_ids for prompt in each] for each in prompts
    ]
    assert all(answer.usage.faults == () for each in answers for answer in each)
    assert max(Counter(made).values()) <= (1 if kind == "folder" else len(replicas))
    for prompt in prompts[0]:
        assert later.generate(prompt, **GREEDY).usage.num_encoded_tokens == 0
    assert len(made) == num_made


FORKING = """
import asyncio, os, signal, threading
import torch
from promptcache.kv import Store
from promptcache.testing.tiny_model import tiny_model
from tests.engine.asking import GREEDY, PROMPT, engine_of

encoding, forked = threading.Event(), threading.Event()

class Slow(Store):
    def put(self, *args, **kwargs):
        encoding.set()
        forked.wait(60)
        return super().put(*args, **kwargs)

model = tiny_model()
engine = engine_of(model, store=Slow(model.shape))
asyncio.run(engine.agenerate([{"role": "user", "content": "Hello"}], **GREEDY))  # starts a service
other = threading.Thread(target=engine.warm)
other.start()
encoding.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(60)  # a deadlock, or a request that nothing answers, ends here
    torch.set_num_threads(1)  # torch's own threads are not in the child
    forked.set()
    first, second = engine.generate(PROMPT, **GREEDY), asyncio.run(engine.agenerate(PROMPT, **GREEDY))
    os._exit(0 if first.usage.num_encoded_tokens and first.token_ids == second.token_ids else 1)
forked.set()
other.join()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_process_forked_while_a_thread_encodes_can_encode() -> None:
    """A process forked while a thread encodes has no lock that stays locked, and starts a service of its own for tasks."""
    assert subprocess.run([sys.executable, "-c", FORKING], timeout=240, check=False).returncode == 0
