"""The Ray Serve application: the server of `promptcache serve`, in several replicas.

Each replica is the whole server with a model of its own. Ray's proxy sends the requests of one schema to a replica that
has answered some before, if they have the header `x-prompt-cache-schema`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import ray
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ray import serve
from ray.serve.config import BackpressureConfig
from starlette.types import ASGIApp, Receive, Scope, Send

from promptcache.diagnostics import ServiceError
from promptcache.server import ServerSettings, ServerState, start_log

_NAME = "Replica"
_MIDDLEWARES = "promptcache.scale.ray_proxy:middlewares"

_LAST_BYTES_S = 2.0
"""Seconds that answers have to pass Ray's proxy after the drain. Ray ends the proxy before all else."""

_HEALTH_PERIOD_S = 2.0
"""Ray asks for the health of a replica this often, and replaces it after three bad answers."""


class ServerReplica:
    """One process with the model and the application of the server. It takes requests once its schemas are encoded."""

    def __init__(self, make_app: Callable[[], FastAPI]) -> None:
        start_log()
        self._app = make_app()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        async def metrics_of_all() -> bytes:
            handle = serve.get_deployment_handle(_NAME, serve.get_replica_context().app_name)
            return with_replicas(await handle.broadcast("metrics").results_async())

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            schema = serve.get_multiplexed_model_id()
            if scope["type"] == "http" and schema in self._server.engine.schemas:
                await self._hold(schema)
            await self._app(scope, receive, send)

        self._app.state.metrics_text = metrics_of_all
        return answer

    @serve.multiplexed(max_num_models_per_replica=-1)  # type: ignore[untyped-decorator]
    async def _hold(self, schema: str) -> str:
        """Let Ray know that this replica has a schema. Its KV stays in the store of the engine."""
        return schema

    @property
    def _server(self) -> ServerState:
        state: ServerState = self._app.state.server
        return state

    async def check_health(self) -> None:
        """Wait until schemas are encoded, and tell Ray whether the thread that runs the model is alive.

        Raises:
            RuntimeError: It has ended.
        """
        while self._server.reason == "starting":
            await asyncio.sleep(0.05)
        if self._server.reason == "worker_dead":
            raise RuntimeError("the thread that runs the model has ended")

    async def drain(self) -> None:
        """Refuse new requests, and wait for the others; those that take longer than `drain_s` get an error."""
        await self._server.drain(self._server.settings.drain_s)

    def metrics(self) -> tuple[str, str]:
        """Return the name of this replica, and its metrics in Prometheus' text format."""
        return serve.get_replica_context().replica_id.unique_id, self._server.metrics.text().decode()


def with_replicas(texts: Sequence[tuple[str, str]]) -> bytes:
    """Join the metrics of replicas, each with a label `replica`.

    Args:
        texts: Name and metrics of each replica.
    """
    joined: dict[str, Metric] = {}
    for name, text in texts:
        for family in text_string_to_metric_families(text):
            into = joined.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            into.samples += [each._replace(labels={**each.labels, "replica": name}) for each in family.samples]

    class Joined:
        def collect(self) -> list[Metric]:
            return [*joined.values()]

    registry = CollectorRegistry()
    registry.register(Joined())
    return generate_latest(registry)


def application(
    make_app: Callable[[], FastAPI], settings: ServerSettings, *, num_replicas: int = 1, num_cpus: float = 1
) -> serve.Application:
    """Return the application of a server.

    Args:
        make_app: Makes the server's application in each replica, with an engine of its own.
        settings: The settings that it has there.
        num_replicas: Number of replicas, unless a configuration file of Ray says otherwise.
        num_cpus: Processor cores of a replica, which are also its threads, unless such a file says otherwise.
    """
    deployment = serve.deployment(serve.ingress()(ServerReplica)).options(
        name=_NAME,
        num_replicas=num_replicas,
        ray_actor_options={"num_cpus": num_cpus},
        max_ongoing_requests=2 * settings.max_rows,
        max_queued_requests=settings.max_waiting,
        backpressure_config=BackpressureConfig(status_code=429),
        graceful_shutdown_timeout_s=settings.drain_s,
        health_check_period_s=_HEALTH_PERIOD_S,
    )
    return deployment.bind(make_app)


def serve_here(
    app: serve.Application, *, host: str, port: int, num_cpus: float, started: Callable[[str], None]
) -> None:
    """Start Ray and an application on this machine, and serve until SIGTERM or SIGINT.

    Running requests are then finished, as by `promptcache.server.serve`. A second signal ends them at once.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        num_cpus: Processor cores of all replicas.
        started: Called with the URL once the application answers.

    Raises:
        ServiceError: The application did not start, with the reason that Ray gives.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = _MIDDLEWARES
    cores = max(os.cpu_count() or 1, math.ceil(num_cpus))
    stop = threading.Event()

    def end(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    logging.getLogger("ray").setLevel(logging.WARNING)
    try:
        ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
        for each in (signal.SIGTERM, signal.SIGINT):  # after Ray has set its own
            signal.signal(each, end)
        serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "WARNING"})
        try:
            replicas = serve.run(app)
        except RuntimeError as error:
            raise ServiceError(_reason(error)) from None
        started(f"http://{host}:{port}")
        stop.wait()
        with suppress(KeyboardInterrupt):
            replicas.broadcast("drain").results()
            time.sleep(_LAST_BYTES_S)
    finally:
        serve.shutdown()
        ray.shutdown()


def _reason(error: RuntimeError) -> str:
    """Return why an application did not start: the last line of each deployment's message."""
    found = [each.message.strip() for app in serve.status().applications.values() for each in app.deployments.values()]
    return "; ".join([str(error), *(each.splitlines()[-1] for each in found if each)])
