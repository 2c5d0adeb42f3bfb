"""The middleware of Ray's proxy: requests of a replica that ends are sent again, or end with an error that says so."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from promptcache.scale.ray_proxy import ReplicaLossMiddleware

EVENTS = ("text/event-stream; charset=utf-8", 200)
TEXT = "text/plain; charset=utf-8"
WHOLE = [("application/json", 200), (b'{"id": 1}', False)]
LOST_STREAM = [EVENTS, (b"data: 1\n\n", True)]
Part = tuple[Any, Any]


def asked(*attempts: Sequence[Part], leaves: bool = False) -> tuple[int | None, bytes, list[bytes]]:
    """Return status and body that a client, which may leave, gets from a proxy, and the bodies that the proxy got.

    In each attempt the proxy sends heads, (type, status), and bodies, (bytes, whether more comes), until it just stops.
    """
    sent: list[Message] = []
    bodies: list[bytes] = []
    left = iter(attempts)
    parts = iter([b"one ", b"two"])

    async def receive() -> Message:
        body = next(parts, None)
        if body is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": body == b"one "}

    async def send(message: Message) -> None:
        sent.append(message)

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        got = [(await receive())["body"], (await receive())["body"]]
        bodies.append(b"".join(got))
        if leaves:
            await receive()
        for first, second in next(left):
            if isinstance(first, bytes):
                await send({"type": "http.response.body", "body": first, "more_body": second})
            else:
                headers = [(b"content-type", first.encode())]
                await send({"type": "http.response.start", "status": second, "headers": headers})

    asyncio.run(ReplicaLossMiddleware(proxy)({"type": "http", "headers": []}, receive, send))
    heads = [each["status"] for each in sent if each["type"] == "http.response.start"]
    assert len(heads) <= 1
    return next(iter(heads), None), b"".join(each.get("body", b"") for each in sent), bodies


def code(body: bytes) -> str:
    """Return the code of an error."""
    found: str = json.loads(body)["error"]["code"]
    return found


def test_an_answer_passes_unchanged() -> None:
    """What a replica answers arrives as it is."""
    assert asked(WHOLE) == (200, b'{"id": 1}', [b"one two"])


@pytest.mark.parametrize(
    "lost", [[], [("application/json", 200)], [EVENTS]], ids=["nothing", "a head", "a stream's head"]
)
def test_a_request_is_sent_again_before_its_answer_has_begun(lost: Sequence[Part]) -> None:
    """A replica that ends before the first byte costs no answer: the next one gets the whole request."""
    assert asked(lost, WHOLE) == (200, b'{"id": 1}', [b"one two"] * 2)


def test_three_lost_replicas_are_an_error() -> None:
    """A request that ends replica after replica is not sent for ever."""
    status, body, bodies = asked([], [], [], WHOLE)

    assert (status, code(body), len(bodies)) == (503, "replica_lost", 3)


def test_a_stream_that_has_begun_ends_with_an_error_event() -> None:
    """Tokens that the client has are not generated again; the last event says that the replica has ended."""
    status, body, bodies = asked(LOST_STREAM, WHOLE)

    assert (status, len(bodies)) == (200, 1)
    assert body.startswith(b"data: 1\n\ndata: {")
    assert code(body.removeprefix(b"data: 1\n\ndata: ")) == "replica_lost"


@pytest.mark.parametrize("part", [[], LOST_STREAM])
def test_a_client_that_has_left_gets_nothing_more(part: Sequence[Part]) -> None:
    """A request is neither sent again nor answered after its client has disconnected."""
    _, body, bodies = asked(part, WHOLE, leaves=True)

    assert (body, len(bodies)) == (b"".join(each for each, _ in part if isinstance(each, bytes)), 1)


@pytest.mark.parametrize(
    ("refusal", "status", "expected"),
    [
        ([(TEXT, 429), (b"Request dropped", False)], 429, "queue_full"),
        ([(TEXT, 404), (b"Path not found", False)], 503, "no_replica"),
        ([(TEXT, 503), (b"", False)], 503, "no_replica"),
    ],
)
def test_refusals_of_the_proxy_have_the_form_of_the_server(refusal: Sequence[Part], status: int, expected: str) -> None:
    """What Ray's proxy answers itself is an error object that clients may answer by another try."""
    found, body, _ = asked(refusal)

    assert (found, code(body)) == (status, expected)


def test_the_header_of_a_schema_is_that_of_ray() -> None:
    """The header by which other balancers route names the model for Ray's multiplexing."""
    seen: list[Scope] = []

    async def proxy(scope: Scope, _receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(_message: Message) -> None:
        pass

    headers = [(b"host", b"x"), (b"x-prompt-cache-schema", b"travel")]
    asyncio.run(ReplicaLossMiddleware(proxy)({"type": "http", "headers": headers}, send, send))  # type: ignore[arg-type]

    assert seen[0]["headers"] == [(b"host", b"x"), (b"serve_multiplexed_model_id", b"travel")]
