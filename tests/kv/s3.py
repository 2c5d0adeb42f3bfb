"""An S3 server in this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "shared"


class S3Server:
    """S3 on a free port."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._writing = threading.Lock()  # moto asks first and writes then; S3 does both at once
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def options(self) -> dict[str, Any]:
        """Return the options of `s3fs` for this server."""
        return {"key": "test", "secret": "test", "endpoint_url": self.endpoint}

    def empty(self) -> None:
        """Remove all objects."""
        bucket = boto3.resource(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        ).Bucket(BUCKET)
        bucket.create()
        bucket.objects.delete()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._writing if environ["REQUEST_METHOD"] != "GET" else contextlib.nullcontext():
            return list(self._moto(environ, start_response))


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
