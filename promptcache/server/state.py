"""The settings of a server, and what its requests share: engine, service, metrics."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import NoneType

from promptcache.decode import ServiceLimits, WarmReport
from promptcache.diagnostics import (
    BYTES_ABOVE_0,
    SECONDS,
    TEXT,
    InvalidValue,
    Kind,
    ServiceClosed,
    instance,
    one_of,
    whole,
)
from promptcache.engine import Engine
from promptcache.kv import Codec
from promptcache.language import CheckedSchema, Schema
from promptcache.locks import new_lock
from promptcache.server.errors import ApiError
from promptcache.server.limits import ApiKeys, is_origin
from promptcache.server.loop_calls import LoopCalls
from promptcache.server.metrics import ServerMetrics
from promptcache.server.pools import WorkPools
from promptcache.server.response_memory import ResponseMemory
from promptcache.server.schema_folder import SchemaFolder


def _list_of(words: str, takes: Callable[[str], bool]) -> Kind:
    """Return the kind of a list of texts that `takes` accepts."""
    return Kind(
        f"a list of {words}",
        lambda value: isinstance(value, list | tuple) and all(isinstance(each, str) and takes(each) for each in value),
    )


_KINDS = {
    "model": TEXT,
    "keys": instance("an ApiKeys", ApiKeys),
    "hosts": _list_of("names of hosts", bool),
    "origins": _list_of("'*' or of origins such as 'https://app.example.com'", is_origin),
    "schema_folder": instance("a SchemaFolder, or None,", SchemaFolder, NoneType),
    "keep": one_of(Codec),
    "limits": instance("a ServiceLimits", ServiceLimits),
    "max_new_tokens": whole(1, unit="tokens"),
    "request_timeout_s": SECONDS,
    "max_body_bytes": BYTES_ABOVE_0,
    "max_connections": whole(1, unit="connections"),
    "client_timeout_s": SECONDS,
    "drain_s": SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model: The name of the model for clients.
        keys: Digests of the keys.
        hosts: Names under which it answers without keys, beside `localhost` and addresses.
        origins: Origins whose pages may read answers in a browser (CORS); `*` allows all.
        schema_folder: The folder in which schemas that clients add survive a restart; None forgets them.
        keep: Codec of schemas that clients add.
        limits: Limits of the queue and the batch.
        max_new_tokens: Limit of the tokens of one answer.
        request_timeout_s: Limit of the time of one request.
        max_body_bytes: Limit of the body of one request.
        max_connections: Connections above which those that wait for a request are closed; if all are busy, requests
            are refused.
        client_timeout_s: Time that a client has to send the head of a request, to send its body, and to read some of
            its answer.
        drain_s: How long running requests may go on after SIGTERM.

    Raises:
        InvalidValue: A setting is not a value of its kind.
    """

    model: str
    keys: ApiKeys = field(default_factory=ApiKeys)
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    schema_folder: SchemaFolder | None = None
    keep: Codec = Codec.FULL
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    max_new_tokens: int = 1024
    request_timeout_s: float = 600.0
    max_body_bytes: int = 2**20
    max_connections: int = 512
    client_timeout_s: float = 30.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            kind.check(name, getattr(self, name), InvalidValue)


_REASONS = {
    "starting": "the server is starting: it encodes its schemas",
    "draining": "the server is about to end",
    "worker_dead": "the thread that runs the model has ended; the server has to be restarted",
}


class ServerState:
    """Engine, service and metrics of a running server.

    Attributes:
        changing: The lock of changes of schemas.
        warming: Whether schemas are being encoded; no request is answered until then.
        draining: Whether the server is about to end.
        num_busy_connections: Returns the number of connections whose request is being answered.
        pools: Threads for work beside the model.
        responses: Conversations that callers of `/v1/responses` may continue.
        calls: Into the event loop in which the state was made.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.warming = True
        self.draining = False
        self.num_busy_connections: Callable[[], int] = lambda: 0
        self.changing = new_lock()
        self.calls = LoopCalls()
        self.responses = ResponseMemory()
        self.metrics = ServerMetrics(lambda: self.service.counts, engine.store, engine.stats)
        self.pools = WorkPools(settings.limits.max_waiting, self.metrics.rejected)
        self.service = engine.service(settings.limits, observer=self.metrics)

    def put_schema(self, schema: Schema, document: str) -> CheckedSchema:
        """Add or replace a schema, and keep its document in the folder.

        Raises:
            SchemaError: The model cannot take the schema. Nothing is changed.
            OSError: The file cannot be written.
        """
        folder = self.settings.schema_folder
        with self.changing, nullcontext() if folder is None else folder.writing(schema.name, document):
            return self.engine.add_schema(schema, keep=self.settings.keep)

    def delete_schema(self, name: str) -> None:
        """Remove a schema, and its document in the folder.

        Raises:
            UnknownSchema: There is no such schema.
            OSError: The file cannot be removed.
        """
        with self.changing:
            if self.settings.schema_folder is not None:
                self.settings.schema_folder.remove(name)
            self.engine.remove_schema(name)

    def read_folder(self) -> Iterator[str]:
        """Add what is new in the folder of schemas, in the place of others of their names, and remove what has gone.

        Yields:
            The faults of its files.

        Raises:
            OSError: The folder cannot be read. Nothing is changed.
        """
        if self.settings.schema_folder is not None:
            with self.changing:
                add = partial(self.engine.add_schema, keep=self.settings.keep)
                yield from self.settings.schema_folder.read(add, self._remove)

    def _remove(self, name: str) -> None:
        if name in self.engine.schemas:
            self.engine.remove_schema(name)

    def warm(self, schema: str | None = None, *, members: bool = False, pairs: bool = False) -> Sequence[WarmReport]:
        """Encode the modules of a schema, or of all. This ends between two encodings once the server is about to end.

        Raises:
            ServiceClosed: The server is about to end. KV that was encoded before stays in the store.
        """

        def check(_done: int, _total: int) -> None:
            if self.draining:
                raise ServiceClosed(_REASONS["draining"], "draining")

        return self.engine.warm(schema, members=members, pairs=pairs, progress=check)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, and end the service once the others have ended; after the timeout they get an error."""
        self.draining = True
        await to_thread(self.service.drain, timeout_s)
        await to_thread(self.service.close)

    def close(self) -> None:
        """End the service; requests that still run fail."""
        self.service.close()

    @property
    def reason(self) -> str | None:
        """Why no request is answered: "starting", "draining" or "worker_dead"; None if requests are."""
        if self.service.state == "dead":
            return "worker_dead"
        if self.draining or self.service.state == "draining":
            return "draining"
        return "starting" if self.warming else None

    def check_ready(self) -> None:
        """Refuse a request while the server cannot answer it.

        Raises:
            ServiceClosed: It cannot, with the reason.
        """
        if reason := self.reason:
            self.metrics.rejected(reason)
            raise ServiceClosed(_REASONS[reason], reason)

    def no_schema(self, name: str, *, param: str | None = None) -> ApiError:
        """Return the error 404 for the name of a schema that there is not."""
        known = ", ".join(self.engine.schemas) or "none"
        message = f"there is no schema '{name}' here; schemas are {known}"
        return ApiError(404, "schema_not_found", message, param=param)

    def schema_of(self, model: str) -> str | None:
        """Return the schema of a model id, `base@schema`; None for the base model.

        Raises:
            ApiError: 404, there is no such model.
        """
        base, at, schema = model.partition(f"{self.settings.model}@")
        if model == self.settings.model:
            return None
        if base or not at or schema not in self.engine.schemas:
            known = ", ".join([self.settings.model, *(f"{self.settings.model}@{each}" for each in self.engine.schemas)])
            raise ApiError(
                404, "model_not_found", f"there is no model '{model}' here; models are {known}", param="model"
            )
        return schema
