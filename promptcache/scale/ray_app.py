"""The Ray Serve application: a front, which is the server without the model, and replicas, which have the model.

    import_path: promptcache.scale.ray_app:build

Ray routes requests by `SchemaRouter`. If a replica ends, its streams go on at another one.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import ray
from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError
from ray import serve
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError, WorkerCrashedError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from promptcache.diagnostics import InvalidValue, QueueFull, ServiceError
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.language import Schema, check_schema, open_schema
from promptcache.scale.remote import RemoteEngine, RemoteRequest, ReplicaFacts, ReplicaLost, pack
from promptcache.scale.replica import ReplicaService
from promptcache.scale.resume import Attempt, TokenGroup
from promptcache.server import ServerSettings, create_app, read_keys, start_log

_DEAD = 3  # the exit code of `promptcache serve` if the thread that runs the model has ended
_LAST_BYTES_S = 2.0
"""Seconds that answers have to pass Ray's proxy after the drain. Ray ends the proxy before all else."""

_LOST = (RayActorError, WorkerCrashedError, ObjectLostError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Arguments of the application, `args` in a configuration of Ray Serve.

    Attributes:
        model: "demo", a folder or a hub id, the same on all machines.
        schemas: Files of schemas. They are read when the application is built.
        device: As for `Engine.from_pretrained`.
        dtype: As for `Engine.from_pretrained`.
        store: The store of each replica; None keeps KV in its memory only.
        num_replicas: Number of replicas at the start.
        max_replicas: Ray adds replicas under load up to this number, and removes them again; None leaves their number
            as it is.
        num_cpus: Processor cores of a replica, which are also its threads.
        num_gpus: GPUs of a replica.
        api_key_file: Keys of clients, one a line. It is read when the application is built.
        settings: Limits of the server. None means the defaults.
    """

    model: str = "demo"
    schemas: Sequence[str] = ()
    device: str | None = None
    dtype: str = "auto"
    store: StoreConfig | None = None
    num_replicas: int = 1
    max_replicas: int | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    api_key_file: str | None = None
    settings: ServerSettings | None = None

    @property
    def served(self) -> ServerSettings:
        """The settings of the server."""
        return self.settings or ServerSettings(model=self.model if self.model == "demo" else Path(self.model).name)


class ReplicaActor:
    """One process with the model. It takes requests once its schemas are encoded."""

    def __init__(self, options: RayOptions, packed: Sequence[str]) -> None:
        engine = Engine.from_pretrained(
            options.model,
            device=options.device,
            dtype=options.dtype,
            store=options.store,
        )
        engine.store.probe()
        self._service = ReplicaService(engine, options.served.limits, options.served.keep)
        self._service.warm(packed)

    async def facts(self) -> ReplicaFacts:
        """Return the facts about the model that fronts need."""
        return self._service.facts

    async def answer(self, request: RemoteRequest, attempt: Attempt) -> AsyncGenerator[TokenGroup]:
        """Yield the groups of an answer. A replica whose model has failed ends, so that Ray replaces it."""
        try:
            async with aclosing(self._service.answer(request, attempt)) as groups:
                async for group in groups:
                    yield group
        except ReplicaLost:
            if self._service.is_dead:
                os._exit(_DEAD)
            raise

    def check_health(self) -> None:
        """Tell Ray whether the model still runs."""
        if self._service.is_dead:
            raise RuntimeError("the thread that runs the model has ended")

    def __del__(self) -> None:
        if hasattr(self, "_service"):
            self._service.close()


class FrontActor:
    """The server. It checks and plans prompts, and has no model."""

    async def __init__(  # type: ignore[misc] # Ray waits
        self, replicas: DeploymentHandle, options: RayOptions, packed: Sequence[str]
    ) -> None:
        start_log()
        self._settings = options.served
        self._replicas = replicas.options(stream=True)
        self._engine = RemoteEngine(await replicas.facts.remote(), self._send, self._settings.keep)
        self._engine.set_schemas(packed)

    def __serve_build_asgi_app__(self) -> FastAPI:
        self._app = create_app(self._engine, self._settings)
        return self._app

    async def drain(self) -> None:
        """Refuse new requests, and wait for the others; those that take longer than `drain_s` get an error."""
        await self._app.state.server.drain(self._settings.drain_s)

    async def _send(self, request: RemoteRequest, attempt: Attempt) -> AsyncGenerator[TokenGroup]:
        """Send an attempt to the replica that the router chooses.

        Ray's router takes requests with one internal ID as one request, and the rows of an answer have inherited that
        of their HTTP request. In an empty context, each of them gets an ID of its own.
        """
        groups = Context().run(self._replicas.answer.remote, request, attempt)
        has_ended = False
        try:
            async for group in groups:
                yield group
            has_ended = True
        except _LOST as error:
            raise ReplicaLost(type(error).__name__) from None
        except BackPressureError as error:
            raise QueueFull(f"{error.message}; try later", "queue_full") from None
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        finally:
            if not has_ended:
                groups.cancel()


def build(args: dict[str, Any]) -> serve.Application:
    """Return the application of a configuration file, whose `args` are the fields of `RayOptions`.

    Raises:
        InvalidValue: An argument is unknown or has a wrong value.
        SchemaError: A schema is not valid.
    """
    try:
        options = TypeAdapter(RayOptions).validate_python(args)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidValue(f"args.{place}: {first['msg']}") from None
    _check_names(args, options, "args")
    return application(options, [open_schema(Path(each)) for each in options.schemas])


def _check_names(given: Mapping[str, Any], made: Any, place: str) -> None:
    names = [each.name for each in fields(made)]
    for name, value in given.items():
        if name not in names:
            raise InvalidValue(f"{place}.{name} is not known; there are {', '.join(names)}")
        if is_dataclass(getattr(made, name)) and isinstance(value, Mapping):
            _check_names(value, getattr(made, name), f"{place}.{name}")


def application(options: RayOptions, schemas: Sequence[Schema]) -> serve.Application:
    """Return the application that serves schemas.

    If it is deployed again, Ray replaces the front and the replicas while requests are answered. The old front stays
    until its last request has ended.
    """
    settings = options.served
    if options.api_key_file is not None:
        settings = replace(settings, keys=replace(settings.keys, clients=read_keys(Path(options.api_key_file))))
    options = replace(options, settings=settings)
    for each in schemas:
        check_schema(each)
    packed = [pack(each) for each in schemas]
    limits = settings.limits
    most = options.max_replicas
    scaling = None
    if most is not None:
        scaling = AutoscalingConfig(
            min_replicas=options.num_replicas, max_replicas=most, target_ongoing_requests=limits.max_rows
        )
    replicas = serve.deployment(ReplicaActor).options(
        name="Replica",
        num_replicas=options.num_replicas if scaling is None else None,
        autoscaling_config=scaling,
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        max_ongoing_requests=2 * limits.max_rows,
        max_queued_requests=limits.max_waiting,
        graceful_shutdown_timeout_s=settings.drain_s,
        request_router_config=RequestRouterConfig(request_router_class="promptcache.scale.ray_router.SchemaRouter"),
    )
    front = serve.deployment(serve.ingress()(FrontActor)).options(
        name="Front",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=settings.max_connections,
        graceful_shutdown_timeout_s=settings.request_timeout_s,
        max_surge_percent=100,
    )
    return front.bind(replicas.bind(options, packed), options, packed)


def serve_here(
    options: RayOptions, schemas: Sequence[Schema], *, host: str, port: int, started: Callable[[str], None]
) -> None:
    """Start Ray and the application on this machine, and serve until SIGTERM or SIGINT.

    Running requests are then finished, as by `promptcache.server.serve`. A second signal ends them at once.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        started: Called with the URL once the application answers.

    Raises:
        ServiceError: The application did not start, with the reason that Ray gives.
    """
    made = application(options, schemas)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cores = max(os.cpu_count() or 1, math.ceil((options.max_replicas or options.num_replicas) * options.num_cpus))
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
            front = serve.run(made)
        except RuntimeError as error:
            raise ServiceError(_reason(error)) from None
        started(f"http://{host}:{port}")
        stop.wait()
        with suppress(KeyboardInterrupt):
            front.drain.remote().result()
            time.sleep(_LAST_BYTES_S)
    finally:
        serve.shutdown()
        ray.shutdown()


def _reason(error: RuntimeError) -> str:
    """Return why an application did not start: the last line of each deployment's message."""
    found = [each.message.strip() for app in serve.status().applications.values() for each in app.deployments.values()]
    return "; ".join([str(error), *(each.splitlines()[-1] for each in found if each)])
