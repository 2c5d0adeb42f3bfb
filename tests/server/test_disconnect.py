"""A client that closes its connection frees its row."""

from __future__ import annotations

import json
import re
import socket
from urllib.parse import urlsplit

import pytest

from tests.server.conftest import CHAT, Served, wait_until

ENDLESS = {**CHAT, "max_tokens": 1024, "min_tokens": 1024}


def num_cancelled(served: Served) -> float:
    """Return how many requests were cancelled, by the metrics."""
    with served.http("root") as client:
        found = re.search(r'requests_total\{endpoint="chat",finish="cancelled"\} (\S+)', client.get("/metrics").text)
    return float(found[1]) if found else 0


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_cancels_the_request(served: Served, stream: bool) -> None:
    """A closed connection removes a running request soon, with and without a stream, and others are answered."""
    before = num_cancelled(served)
    body = json.dumps({**ENDLESS, "stream": stream}).encode()
    place = urlsplit(served.url)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((place.hostname or "", place.port or 0)) as connection:
        connection.sendall(head.encode() + body)
        if stream:
            assert connection.recv(10).startswith(b"HTTP/1.1 2")
        wait_until(lambda: served.state.service.counts.num_running == 1)
    wait_until(lambda: num_cancelled(served) == before + 1)
    wait_until(lambda: served.state.service.counts.num_running == 0)

    with served.http() as client:
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def test_closing_openais_stream_cancels_the_request(served: Served) -> None:
    """A stream that is closed early ends its request."""
    before = num_cancelled(served)
    stream = served.openai().chat.completions.create(**_arguments())  # type: ignore[call-overload]
    next(iter(stream))
    stream.close()

    wait_until(lambda: num_cancelled(served) == before + 1)


def _arguments() -> dict[str, object]:
    extra = {"min_tokens": 1024, "prompt_cache": CHAT["prompt_cache"]}
    kept = {name: value for name, value in ENDLESS.items() if name not in extra}
    return {**kept, "stream": True, "extra_body": extra}
