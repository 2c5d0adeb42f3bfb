"""A client that closes its connection frees its row."""

from __future__ import annotations

import json
import re
import socket
from urllib.parse import urlsplit

import pytest

from tests.server.conftest import CHAT, CHATS, Served, wait_until


def num_cancelled(served: Served) -> float:
    """Return how many requests were cancelled, by the metrics."""
    text = served.get("/metrics", "root").text
    found = re.search(r'requests_total\{endpoint="chat",finish="cancelled"\} (\S+)', text)
    return float(found[1]) if found else 0


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_cancels_the_request(served: Served, stream: bool) -> None:
    """A closed connection removes a running request soon, and others are answered; a stream is one of OpenAI's client."""
    before = num_cancelled(served)
    extra = {"min_tokens": 1024, "prompt_cache": CHAT["prompt_cache"]}
    asked = {"model": CHAT["model"], "messages": CHAT["messages"], "max_tokens": 1024, "stream": stream}
    if stream:
        answer = served.openai().chat.completions.create(**asked, extra_body=extra)  # type: ignore[call-overload]
        next(iter(answer))
        answer.close()
    else:
        body = json.dumps({**asked, **extra}).encode()
        place = urlsplit(served.url)
        head = (
            f"POST {CHATS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nContent-Type: application/json"
        )
        with socket.create_connection((place.hostname or "", place.port or 0)) as connection:
            connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: served.state.service.counts.num_running == 1)
    wait_until(lambda: num_cancelled(served) == before + 1)
    wait_until(lambda: served.state.service.counts.num_running == 0)

    assert served.post(CHATS, CHAT).status_code == 200
