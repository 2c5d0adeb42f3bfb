"""The settings of a server, and what its requests share: engine, service, metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from promptcache.diagnostics import ServiceClosed
from promptcache.engine import Engine
from promptcache.kv import Codec
from promptcache.runtime import Service, ServiceLimits
from promptcache.server.errors import ApiError
from promptcache.server.limits import ApiKeys
from promptcache.server.metrics import ServerMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model: The name of the model for clients.
        keys: Digests of the keys.
        keep: Codec of schemas that clients add.
        limits: Limits of the queue and the batch.
        max_new_tokens: Limit of the tokens of one answer.
        request_timeout_s: Limit of the time of one request.
        max_body_bytes: Limit of the body of one request.
        max_connections: Connections above which requests are refused.
        client_timeout_s: Time that a client has to send the head of a request, to send its body, and to read some of
            its answer.
        drain_s: How long running requests may go on after SIGTERM.
    """

    model: str
    keys: ApiKeys = field(default_factory=ApiKeys)
    keep: Codec = Codec.FULL
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    max_new_tokens: int = 1024
    request_timeout_s: float = 600.0
    max_body_bytes: int = 2**20
    max_connections: int = 512
    client_timeout_s: float = 30.0
    drain_s: float = 30.0


class ServerState:
    """Engine, service and metrics of a running server.

    Attributes:
        warming: Whether schemas are being encoded; no request is answered until then.
        draining: Whether the server is about to end.
        num_connections: Returns the number of open connections.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.warming = True
        self.draining = False
        self.num_connections: Callable[[], int] = lambda: 0
        self.metrics = ServerMetrics(lambda: self.service.counts, engine.store)
        self.service: Service = engine.service(settings.limits, observer=self.metrics)

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
            words = {
                "starting": "the server is starting: it encodes its schemas",
                "draining": "the server is about to end",
                "worker_dead": "the thread that runs the model has ended; the server has to be restarted",
            }[reason]
            self.metrics.rejected(reason)
            raise ServiceClosed(words, reason)

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
