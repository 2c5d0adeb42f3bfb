"""Other processes for tests: forked from a server that has torch loaded, so that each is there at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

PATIENCE_S = 120.0


def context() -> ForkServerContext:
    """Processes come from a server of one thread: forking this one, with threads and all, would not be safe."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.kv.resting", "tests.engine.warming"])
    return made


def start(function: Callable[..., object], *arguments: object) -> BaseProcess:
    """Run a function in another process."""
    process = context().Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def finish(process: BaseProcess) -> None:
    """Wait for a process that ends by itself, and well."""
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    process.close()


def in_child(function: Callable[..., object], *arguments: object) -> Any:
    """Return what a function returns in another process."""
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
