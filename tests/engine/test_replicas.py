"""Replicas on one place: in a folder each module is encoded once in all; at a URL perhaps twice, with the same answers."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from promptcache import Completion, Engine
from promptcache.kv import FileTier
from tests.engine.process_work import NAMES, engine, replica
from tests.kv.s3 import BUCKET, S3Server, s3_server

GREEDY = {"do_sample": False, "max_new_tokens": 2}


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
