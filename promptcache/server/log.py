"""The log of the server on stderr: each line is a JSON object, or words on a terminal.

A request has one line, from `gate`. Lines of other loggers have a time, a level and a message, and their traceback.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any

REQUESTS = "promptcache.server"
"""The logger of requests. Its messages are JSON already, without any text of prompts and answers."""

_FIRST = ("level", "logger", "event", "method", "path", "status", "message")
"""Fields whose names a person does not need."""

_MAX_EQUAL = 5
_WINDOW_S = 10.0
_MAX_KINDS = 256


def now() -> str:
    """Return the time as log lines have it, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        if record.name == REQUESTS:
            return record.getMessage()
        line: dict[str, Any] = {
            "time": now(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (num_left_out := getattr(record, "num_left_out", 0)) > 0:
            line["num_left_out"] = num_left_out
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class WordsFormatter(JsonFormatter):
    """Formats a record for a person: the time of day, what happened, and the other fields as `name=value`.

    The id of a request is there if it failed. Control characters are escaped, because paths come from clients.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the lines of a traceback below it."""
        line = json.loads(super().format(record))
        words = [datetime.fromisoformat(line.pop("time")).astimezone().strftime("%H:%M:%S")]
        words += [str(line.pop(name)) for name in _FIRST if line.get(name) is not None]
        traceback = line.pop("traceback", None)
        if "error" not in line:
            line.pop("id", None)
        words += [f"{name}={value}" for name, value in line.items() if value is not None]
        lines = [" ".join(words), *(traceback or "").splitlines()]
        return "\n".join("".join(each if each.isprintable() else repr(each)[1:-1] for each in line) for line in lines)


class EqualLines(logging.Filter):
    """Lets 5 equal records pass in 10 seconds. The next one that passes has the number of those left out.

    Records are equal if one line of the program has logged them about one type of exception. Lines of requests pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record passes."""
        if record.name == REQUESTS:
            return True
        kind = (record.pathname, record.lineno, record.exc_info and record.exc_info[0])
        since, count = self._kinds.get(kind, (-_WINDOW_S, 0))
        if time.monotonic() - since >= _WINDOW_S:
            record.num_left_out = count - _MAX_EQUAL
            since, count = time.monotonic(), 0
        self._kinds[kind] = since, count + 1
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)
        return count < _MAX_EQUAL


def start_log() -> None:
    """Write warnings of all loggers, and the lines of requests, to stderr.

    Libraries such as torch and transformers have handlers of their own, whose lines get the same form.
    """
    logging.basicConfig(handlers=[logging.StreamHandler(sys.stderr)], level=logging.WARNING)
    logging.captureWarnings(True)
    logging.getLogger(REQUESTS).setLevel(logging.INFO)
    limit, form = EqualLines(), WordsFormatter() if sys.stderr.isatty() else JsonFormatter()
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
                handler.setFormatter(form)
                handler.addFilter(limit)


def log_event(event: str, **fields: object) -> None:
    """Write a line about the server, which belongs to no request."""
    logging.getLogger(REQUESTS).info(json.dumps({"time": now(), "event": event, **fields}))
