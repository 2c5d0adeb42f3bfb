"""The settings of a server, and what its requests share: engine, service, metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from promptcache.diagnostics import InvalidValue
from promptcache.engine import Engine
from promptcache.kv import Codec
from promptcache.language import Schema
from promptcache.runtime import Service, ServiceLimits
from promptcache.server.errors import ApiError
from promptcache.server.limits import ApiKeys
from promptcache.server.metrics import ServerMetrics

PLAIN_SCHEMA = "promptcache.server/plain"
"""The empty schema of `/v1/completions`: in a schema without turns, text is continued as it is."""


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
        drain_s: How long running requests may go on after SIGTERM.
    """

    model: str
    keys: ApiKeys = field(default_factory=ApiKeys)
    keep: Codec = Codec.FULL
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    max_new_tokens: int = 1024
    request_timeout_s: float = 600.0
    max_body_bytes: int = 2**20
    drain_s: float = 30.0


class ServerState:
    """Engine, service and metrics of a running server.

    Attributes:
        warming: Whether schemas are being encoded; no request is answered until then.
        draining: Whether the server is about to end.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        if PLAIN_SCHEMA in engine.schemas:
            raise InvalidValue(f"a schema is named '{PLAIN_SCHEMA}', which is the server's own; rename it")
        self.engine = engine
        self.settings = settings
        self.warming = True
        self.draining = False
        engine.add_schema(Schema(PLAIN_SCHEMA))
        self.service: Service = engine.service(settings.limits)
        self.metrics = ServerMetrics(self.service, engine.store)

    def close(self) -> None:
        """End the service; requests that still run fail."""
        self.service.close()
        self.engine.remove_schema(PLAIN_SCHEMA)

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
            ApiError: 503 with the reason.
        """
        if reason := self.reason:
            retry = {"x-should-retry": "false"} if reason == "worker_dead" else {"retry-after": "1"}
            words = {
                "starting": "the server is starting: it encodes its schemas",
                "draining": "the server is about to end",
                "worker_dead": "the thread that runs the model has ended; the server has to be restarted",
            }[reason]
            self.metrics.rejected(reason)
            raise ApiError(503, reason, words, headers=retry)

    @property
    def schema_names(self) -> tuple[str, ...]:
        """Names of the schemas that clients see."""
        return tuple(name for name in self.engine.schemas if name != PLAIN_SCHEMA)

    def schema_of(self, model: str) -> str | None:
        """Return the schema of a model id, `base@schema`; None for the base model.

        Raises:
            ApiError: 404, there is no such model.
        """
        base, at, schema = model.partition(f"{self.settings.model}@")
        if model == self.settings.model:
            return None
        if base or not at or schema not in self.schema_names:
            known = ", ".join([self.settings.model, *(f"{self.settings.model}@{each}" for each in self.schema_names)])
            raise ApiError(
                404, "model_not_found", f"there is no model '{model}' here; models are {known}", param="model"
            )
        return schema
