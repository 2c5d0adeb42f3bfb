"""Encoding with concurrent threads, callbacks and processes."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from promptcache import Engine
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

SCHEMA = '<schema name="books">{}</schema>'.format(
    "".join(f'<module name="m{i}">{"ab " * 300}{i}</module>' for i in range(4))
)
OTHER = '<schema name="other"><module name="x">Something else.</module></schema>'
GREEDY = {"do_sample": False, "max_new_tokens": 2}


def engine() -> Engine:
    made = Engine(tiny_model(), ByteTokenizer())
    made.add_schema(SCHEMA)
    made.add_schema(OTHER)
    return made


def test_progress_of_warming_may_use_the_engine() -> None:
    """A progress callback of `warm` may answer a prompt, encoding included."""
    made, answers = engine(), []

    def progress(done: int, total: int) -> None:
        if not answers:
            answers.append(made.generate('<prompt schema="other"><x/>?</prompt>', **GREEDY))

    thread = threading.Thread(target=made.warm, args=("books",), kwargs={"progress": progress}, daemon=True)
    thread.start()
    thread.join(60)

    assert not thread.is_alive()
    assert answers[0].usage.num_encoded_tokens > 0


FORKING = """
import os, signal, threading
import torch
from promptcache import Engine
from promptcache.kv import MemoryStore
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

encoding, forked = threading.Event(), threading.Event()

class Slow(MemoryStore):
    def put(self, *args, **kwargs):
        encoding.set()
        forked.wait(60)
        return super().put(*args, **kwargs)

model = tiny_model()
engine = Engine(model, ByteTokenizer(), store=Slow(model.shape))
engine.add_schema('<schema name="s"><module name="a">A long text.</module></schema>')
other = threading.Thread(target=engine.warm)
other.start()
encoding.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(60)  # a deadlock ends here
    torch.set_num_threads(1)  # torch's own threads are not in the child
    forked.set()
    answer = engine.generate('<prompt schema="s"><a/>?</prompt>', max_new_tokens=2)
    os._exit(0 if answer.usage.num_encoded_tokens else 1)
forked.set()
other.join()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_process_forked_while_a_thread_encodes_can_encode() -> None:
    """A process forked while a thread encodes has no lock that stays locked."""
    assert subprocess.run([sys.executable, "-c", FORKING], timeout=240, check=False).returncode == 0
