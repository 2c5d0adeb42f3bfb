"""A server in a process of its own, which runs during a benchmark."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import torch

from promptcache.diagnostics import ServiceError

_START_S = 600.0
_STOP_S = 30.0


@contextmanager
def server_process(words: Sequence[str], log: Path) -> Iterator[tuple[int, Callable[[], float]]]:
    """Start a program as a server with `--port`; yield the port and a function that returns its CPU seconds.

    These are the seconds of the process and of its children that still run. The process has as many threads of torch as
    this one, and loads its model without the network.

    Args:
        words: The program and its arguments.
        log: The file for its output.

    Raises:
        ServiceError: It does not start.
    """
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PROMPTCACHE_")}
    environment |= {"OMP_NUM_THREADS": str(torch.get_num_threads()), "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen([*words, "--port", str(port)], stdout=output, stderr=output, env=environment)
    try:
        _wait_until_ready(process, port, log)
        yield port, partial(_cpu_s, psutil.Process(process.pid))
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cpu_s(process: psutil.Process) -> float:
    seconds = 0.0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            seconds += times.user + times.system
    return seconds


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.perf_counter() + _START_S
    while time.perf_counter() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            pass  # it does not listen yet
        finally:
            connection.close()
        time.sleep(0.1)
    last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    raise ServiceError(f"the server that is to be measured does not start; its last lines are:\n{last}")
