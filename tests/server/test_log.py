"""The log of the server: lines of JSON, and few of them for one fault."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest

from promptcache.server import log


@pytest.fixture
def written() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger with the server's handler."""
    stream, logger = io.StringIO(), logging.getLogger("tests.server.log")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.JsonFormatter())
    handler.addFilter(log.EqualLines())
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, stream
    logger.removeHandler(handler)


def test_lines_of_other_loggers_are_json(written: tuple[logging.Logger, io.StringIO]) -> None:
    """A line has time, level and message, and the traceback of an error is in it."""
    logger, stream = written
    try:
        raise ValueError("a\nb")
    except ValueError:
        logger.exception("%s failed", "this")

    line = json.loads(stream.getvalue())
    assert (line["level"], line["message"], line["time"][-6:]) == ("ERROR", "this failed", "+00:00")
    assert "ValueError: a\nb" in line["traceback"]


def test_equal_lines_are_left_out_and_counted(
    written: tuple[logging.Logger, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five lines of one place pass in ten seconds, the next one has the number of the others; other places pass."""
    logger, stream = written
    clock = [100.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: clock[0])
    for number in range(1001):
        clock[0] = 100.0 if number < 1000 else 111.0
        logger.warning("number %s", number)
    logger.warning("another place")

    lines = list(map(json.loads, stream.getvalue().splitlines()))
    assert [each["message"] for each in lines] == [
        *(f"number {each}" for each in (0, 1, 2, 3, 4, 1000)),
        "another place",
    ]
    assert [each.get("num_left_out") for each in lines] == [None] * 5 + [995, None]


_LIBRARIES = """
import warnings
import logging as pylogging
import torch
from transformers.utils import logging
from promptcache.server import log_event, start_log
logger = logging.get_logger("transformers.x")
start_log()
logger.warning("of transformers")
warnings.warn("of Python")
pylogging.getLogger("torch").warning("of torch")
log_event("listening", url="http://x")
"""


def test_a_terminal_gets_words(written: tuple[logging.Logger, io.StringIO]) -> None:
    """The fields are those of JSON, in local time, without control characters; a traceback has its lines below."""
    logger, stream = written
    logger.handlers[0].setFormatter(log.WordsFormatter())
    now = "2026-11-28T20:40:02.571+00:00"
    request = {"time": now, "id": "d5df", "caller": None, "method": "GET", "path": "/\x1b[2J\n", "status": 200, "n": 3}
    for each in (request, {**request, "error": "not_found"}):
        record = logging.LogRecord(log.REQUESTS, logging.INFO, "", 0, json.dumps(each), None, None)
        logger.handlers[0].handle(record)
    try:
        raise ValueError("a\nb\x07")
    except ValueError:
        logger.exception("failed\r")

    time = datetime.fromisoformat(now).astimezone().strftime("%H:%M:%S")
    done, refused, failed, *traceback = stream.getvalue().splitlines()
    assert done == f"{time} GET /\\x1b[2J\\n 200 n=3"
    assert refused == f"{time} GET /\\x1b[2J\\n 200 id=d5df n=3 error=not_found"
    assert failed[8:] == " ERROR tests.server.log failed\\r"
    assert traceback[-2:] == ["ValueError: a", "b\\x07"]


def test_lines_of_libraries_are_json() -> None:
    """Libraries with handlers of their own write JSON once the log is started."""
    done = subprocess.run([sys.executable, "-c", _LIBRARIES], capture_output=True, text=True, check=True)

    lines = list(map(json.loads, done.stderr.splitlines()))
    *logged, event = lines
    messages = [each["message"] for each in logged]  # libraries may have more to say
    assert {"of transformers", "of torch"} <= {*messages}
    assert any("UserWarning: of Python" in each for each in messages)
    assert (event["event"], event["url"]) == ("listening", "http://x")
    assert all("time" in each for each in lines)
