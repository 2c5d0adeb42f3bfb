"""Other processes for tests. They are forked from a server that has torch loaded, so each starts at once."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0


def context() -> ForkServerContext:
    """Return the context of a fork server. The server has one thread, so forking it is safe."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.kv.stored"])
    return made


def start(function: Callable[..., object], *arguments: object) -> BaseProcess:
    process = context().Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def finish(process: BaseProcess) -> None:
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    process.close()


def kill_at_random(
    folder: Path, seed: int, within_s: float, function: Callable[..., object], *arguments: object
) -> None:
    """Run a function that works for ever in a process, and kill that within a time after it made the file `started`."""
    (folder / "started").unlink(missing_ok=True)
    process = start(function, *arguments)
    while not (folder / "started").exists():
        assert process.is_alive()
        time.sleep(0.001)
    time.sleep(random.Random(seed).uniform(0, within_s))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    process.close()


def in_child(function: Callable[..., object], *arguments: object) -> Any:
    answers: SimpleQueue[object] = context().SimpleQueue()
    process = start(_answer, answers, function, arguments)
    answer = answers.get() if _answered(process, answers) else None
    finish(process)
    return answer


def _answered(process: BaseProcess, answers: SimpleQueue[object]) -> bool:
    process.join(PATIENCE_S)
    return not answers.empty()


def _answer(answers: SimpleQueue[object], function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    answers.put(function(*arguments))
