"""Engines of several processes or replicas on one place: encodings are shared, and killed processes do no harm."""

import contextlib
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from promptcache import Completion, Engine
from promptcache.kv import FileTier, Store
from promptcache.testing.tiny_model import tiny_model
from tests.engine.asking import engine_of

GREEDY = {"do_sample": False, "max_new_tokens": 2}
NAMES = [f"m{number:02}" for number in range(12)]
_MODULE = f'<module name="{{0}}">{{0}} {6 * "tells a long story. "}<module name="more">{{0}} goes on.</module></module>'
SCHEMA = f'<schema name="long">All of it:{"".join(map(_MODULE.format, NAMES))}</schema>'


def replica(tier: FileTier, record: Callable[[str], object]) -> Engine:
    """Return an engine over a tier that reports the key of each encoding that it computes."""
    store = Store(tiny_model().shape, (tier,))
    put = store.put
    store.put = lambda recipe, *kv: (record(recipe.key), put(recipe, *kv))[1]  # type: ignore[method-assign]
    return engine_of(schema=SCHEMA, store=store)


@pytest.fixture
def s3() -> Iterator["S3Server"]:
    with s3_server() as server:
        server.empty()
        yield server


@pytest.mark.parametrize("kind", ["s3", "folder"])
def test_cold_replicas_answer_like_one_engine(kind: str, s3: "S3Server", tmp_path: Path) -> None:
    """Cold replicas get requests at once, each with its own choices of modules. A later one encodes nothing."""
    made: list[str] = []

    def start() -> Engine:
        tier = FileTier(tmp_path) if kind == "folder" else FileTier(f"s3://{BUCKET}/kept", options=s3.options())
        return replica(tier, made.append)

    replicas, together, reference = [start() for _ in range(3)], threading.Barrier(3), engine_of(schema=SCHEMA)
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


BUCKET = "shared"


class S3Server:
    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._writing = threading.Lock()  # moto asks first and writes then; S3 does both at once
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def options(self) -> dict[str, Any]:
        return {"key": "test", "secret": "test", "endpoint_url": self.endpoint}

    def empty(self) -> None:
        bucket = boto3.resource(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        ).Bucket(BUCKET)
        bucket.create()
        bucket.objects.delete()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._writing if environ["REQUEST_METHOD"] != "GET" else contextlib.nullcontext():
            return list(self._moto(environ, start_response))


class _QuietHandler(WSGIRequestHandler):
    def log(self, *_: object) -> None: ...


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.close()
