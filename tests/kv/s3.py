"""An S3 server in this process, with faults between the client and its files."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "shared"


class S3Server:
    """S3 on a free port.

    Attributes:
        fault: Called with method and path of each request; returns "refuse" (nothing is done), "lose" (the request is
            done, and its answer is an error), "delay" (0.2 s), or None.
        requests: Method and path of each request.
    """

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._writing = threading.Lock()  # moto asks first and writes then; S3 does both at once
        self.fault: Callable[[str, str], str | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def options(self, num_attempts: int = 1) -> dict[str, Any]:
        """Return the options of `s3fs` for this server: requests are sent at most `num_attempts` times."""
        config = {"retries": {"total_max_attempts": num_attempts, "mode": "standard"}}
        return {"key": "test", "secret": "test", "endpoint_url": self.endpoint, "config_kwargs": config}

    def empty(self) -> None:
        """Remove all objects and faults."""
        self.fault = lambda method, path: None
        bucket = boto3.resource(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        ).Bucket(BUCKET)
        bucket.create()
        bucket.objects.delete()
        self.requests.clear()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        fault = self.fault(method, path)
        if fault == "delay":
            time.sleep(0.2)
        if fault == "refuse":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        else:
            answers: list[Any] = []
            with self._writing if method != "GET" else contextlib.nullcontext():
                body = list(self._moto(environ, lambda *answer: answers.append(answer)))
            if fault != "lose":
                start_response(*answers[0])
                return body
        start_response("503 Service Unavailable", [("Content-Length", "0")])
        return []


class _QuietHandler(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run an S3 server for a while."""
    server = S3Server()
    try:
        yield server
    finally:
        server.close()
