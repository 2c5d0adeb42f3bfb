"""What the requests of a server share: engine, service, metrics, and the conversations of earlier responses."""

from __future__ import annotations

import json
import logging
from asyncio import to_thread
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from promptcache.diagnostics import ServiceClosed
from promptcache.engine import Engine
from promptcache.locks import new_lock
from promptcache.server.errors import ApiError
from promptcache.server.metrics import ServerMetrics
from promptcache.server.pools import WorkPools
from promptcache.server.schema_folder import SchemaFolder
from promptcache.session import WarmReport
from promptcache.settings import ServerSettings

_LOG = logging.getLogger("promptcache.server.errors")

_REASONS = {
    "starting": "the server is starting: it encodes its schemas",
    "draining": "the server is about to end",
    "worker_dead": "the thread that runs the model has ended; the server has to be restarted",
}


Conversation: TypeAlias = Sequence[Mapping[str, Any]]
"""Messages in the form of chats, the answer included."""


class ResponseMemory:
    """LRU memory of conversations, each under its caller and the id of its response. Thread-safe."""

    def __init__(self, max_responses: int = 1000, max_bytes: int = 2**26) -> None:
        """Create a memory.

        Args:
            max_responses: The largest number of responses, of all callers.
            max_bytes: The limit of their messages as JSON.
        """
        self.max_responses, self.max_bytes = max_responses, max_bytes
        self._lock = new_lock()
        self._kept: OrderedDict[tuple[str | None, str], tuple[Conversation, int]] = OrderedDict()
        self._nbytes = 0

    def put(self, caller: str | None, response_id: str, messages: Conversation) -> None:
        """Keep a conversation, and forget those that were not used for the longest time."""
        nbytes = len(json.dumps(messages, ensure_ascii=False).encode())
        with self._lock:
            self._kept[caller, response_id] = (messages, nbytes)
            self._nbytes += nbytes
            while len(self._kept) > self.max_responses or self._nbytes > self.max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._nbytes -= freed

    def get(self, caller: str | None, response_id: str) -> Conversation | None:
        """Return the conversation up to a response of a caller, or None."""
        with self._lock:
            if (found := self._kept.get((caller, response_id))) is None:
                return None
            self._kept.move_to_end((caller, response_id))
            return found[0]


class ServerState:
    """Engine, service and metrics of a running server.

    Attributes:
        schema_folder: The folder in which schemas that clients add survive a restart.
        changing: The lock of changes of schemas.
        warming: Whether schemas are being encoded; no request is answered until then.
        draining: Whether the server is about to end.
        num_busy_connections: Returns the number of connections whose request is being answered.
        pools: Threads for work beside the model.
        responses: Conversations that callers of `/v1/responses` may continue.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, schema_folder: SchemaFolder | None = None) -> None:
        self.engine = engine
        self.settings = settings
        self.schema_folder = schema_folder
        self.warming = True
        self.draining = False
        self.num_busy_connections: Callable[[], int] = lambda: 0
        self.changing = new_lock()
        self.responses = ResponseMemory()
        self.metrics = ServerMetrics(lambda: self.service.counts, engine.store, engine.stats)
        self.pools = WorkPools(settings.max_waiting, self.metrics.rejected)
        self.service = engine.service(settings, observer=self.metrics)

    def read_folder(self) -> None:
        """Add what is new in the folder of schemas, in the place of others of their names, and remove what has gone.

        Faults of its files are logged. If the folder cannot be read, nothing is changed.
        """
        if self.schema_folder is None:
            return
        try:
            with self.changing:
                for fault in self.schema_folder.read(self.engine):
                    _LOG.error("a schema is left out: %s", fault)
        except OSError as error:
            _LOG.error("the folder of schemas: %s; all schemas stay as they are", error)

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

    @property
    def reason(self) -> str | None:
        """Why no request is answered: "starting", "draining" or "worker_dead"; None if requests are."""
        if self.service.state == "dead":
            return "worker_dead"
        if self.draining or self.service.state == "draining":
            return "draining"
        return "starting" if self.warming else None

    def check_ready(self) -> None:
        """Raise a `ServiceClosed` with the reason while the server cannot answer requests."""
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
        own = self.settings.served_model_name
        base, at, schema = model.partition(f"{own}@")
        if model == own:
            return None
        if base or not at or schema not in self.engine.schemas:
            known = ", ".join([own, *(f"{own}@{each}" for each in self.engine.schemas)])
            raise ApiError(
                404, "model_not_found", f"there is no model '{model}' here; models are {known}", param="model"
            )
        return schema
