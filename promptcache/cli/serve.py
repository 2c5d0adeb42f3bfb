"""`promptcache serve`: an OpenAI-compatible HTTP server over one model.

An option is taken from the command line, else from `PROMPTCACHE_NAME`, else from the file of `--config`. Most are made
from the fields of `EngineSettings` and `ServerSettings`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.exceptions import Exit

from promptcache.cli.documents import Sources, read_schemas
from promptcache.cli.exits import EnvironmentMissing, ExitCode, UsageMistake, ending
from promptcache.cli.options import FILE, GroupedCommand, context_option, grouped_option
from promptcache.cli.output import tell
from promptcache.cli.settings import EngineOptions, Value, collected, declared_options, engine_options, take_declared
from promptcache.diagnostics import BYTES, InvalidValue, whole
from promptcache.language import CheckedSchema
from promptcache.settings import ServerSettings
from promptcache.tokenizer import local_folder

if TYPE_CHECKING:
    from ray.serve import Application

    from promptcache.engine import Engine
    from promptcache.server import ApiKeys

_PROCESS = "Address and replicas"
_OF_RAY = {"host", "port", "insecure", "ray", "replicas"}
"""Options that an application of Ray Serve has no use for."""
_PLACE = f"{__name__}.place"
"""The place of defaults in the data of a context, for messages."""


def _read_config(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Make the values of a TOML file the defaults of all options."""
    if path is None or ctx.resilient_parsing:
        return
    place = ctx.meta[_PLACE] = f"--config {path}"
    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise EnvironmentMissing(f"{place}: {error.strerror}") from None
    except ValueError as error:
        raise UsageMistake(f"{place} is not TOML: {error}") from None
    ctx.default_map = _as_defaults(values, ctx.command, place)


def _as_defaults(values: Mapping[str, Any], of: click.Command, place: str) -> dict[str, Any]:
    """Return values of options, as click reads defaults. Errors name the place of the values."""
    several = {each.name: each.multiple for each in of.params if each.name != "config"}
    named = {name.replace("-", "_"): value for name, value in values.items()}
    if len(named) < len(values):
        raise UsageMistake(f"{place}: an option is there twice, with - and with _")
    if unknown := sorted(named.keys() - several.keys()):
        raise UsageMistake(f"{place}: there is no option '{unknown[0]}'")
    return {
        name: [*map(str, value if isinstance(value, list) else [value])] if several[name] else str(value)
        for name, value in named.items()
    }


class _ServeCommand(GroupedCommand):
    """A command whose errors name the source of a value that is not allowed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if error.param is not None and error.param.name is not None:
                name, place = error.param.name, None
                match ctx.get_parameter_source(name):
                    case ParameterSource.ENVIRONMENT:
                        place = f"{ctx.auto_envvar_prefix}_{name.upper()}"
                    case ParameterSource.DEFAULT_MAP:
                        place = ctx.meta.get(_PLACE)
                if place:
                    error.param_hint = f"{error.param.get_error_hint(ctx)} from {place}"
            raise


_FILES = (
    grouped_option(
        "Schemas",
        "--schema",
        metavar="FILE",
        type=click.Path(),  # in the environment, files are separated as in PATH
        multiple=True,
        help="A schema to serve; may be given several times.",
    ),
    context_option,
    grouped_option(
        "Schemas",
        "--schema-folder",
        metavar="FOLDER",
        type=click.Path(path_type=Path, file_okay=False),
        help="Keep schemas that clients with an admin key add over HTTP in this folder, and serve those in it.",
    ),
    *(
        grouped_option("Keys", f"--{kind}-key-file", metavar="FILE", type=FILE, help=f"{words}, one a line.")
        for kind, words in (
            ("api", "Keys of clients"),
            ("admin", "Keys that may also change schemas"),
            ("metrics", "Keys that may read metrics only"),
        )
    ),
)
_MEMORY = grouped_option(
    "Cached KV",
    "--memory",
    type=Value(BYTES, "memory"),
    help="Maximum KV in memory; default: a quarter of the device's memory.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of a server. A replica makes its application from them.

    Attributes:
        server: Those of `ServerSettings` that commands have.
    """

    schema: tuple[str, ...]
    context: Path | None
    schema_folder: Path | None
    api_key_file: Path | None
    admin_key_file: Path | None
    metrics_key_file: Path | None
    engine: EngineOptions
    server: Mapping[str, Any]

    @classmethod
    def of(cls, values: dict[str, Any]) -> ServeOptions:
        """Take the options out of the values of the command."""
        server, engine = take_declared(ServerSettings, values), EngineOptions.of(values)
        names = ("schema", "context", "schema_folder", "api_key_file", "admin_key_file", "metrics_key_file")
        return cls(engine=engine, server=server, **{name: values.pop(name) for name in names})

    def read_schemas(self) -> tuple[CheckedSchema, ...]:
        """Read the files of `--schema`, and refuse two schemas of one name."""
        schemas = read_schemas(self.schema, Sources(self.context))
        names = [each.name for each in schemas]
        for number, (file, name) in enumerate(zip(self.schema, names, strict=True)):
            if name in names[:number]:
                raise UsageMistake(f"--schema {file}: another file has the schema '{name}' too")
        return schemas

    def read_keys(self) -> ApiKeys:
        """Read the files of keys."""
        from promptcache.server import ApiKeys, read_keys

        files = {"api": self.api_key_file, "admin": self.admin_key_file, "metrics": self.metrics_key_file}
        found = {}
        for kind, path in files.items():
            try:
                found[kind] = frozenset[str]() if path is None else read_keys(path)
            except InvalidValue as error:
                raise UsageMistake(f"--{kind}-key-file {error}") from None
        return ApiKeys(clients=found["api"], admins=found["admin"], metrics=found["metrics"])

    def settings(self) -> ServerSettings:
        """Return the settings of the server."""
        model = self.engine.model
        name = model if model == "demo" or local_folder(model) is None else Path(model).resolve().name
        return ServerSettings(**{**self.server, "served_model_name": self.server["served_model_name"] or name})

    def load(self, schemas: tuple[CheckedSchema, ...]) -> Engine:
        """Load the model and add the schemas.

        A store that cannot be written is refused: every start of the server would encode all schemas.
        """
        engine = self.engine.load()
        engine.store.probe()
        for each in schemas:
            engine.add_schema(each.source)
        return engine

    def make_app(self) -> Any:
        """Return the application of the server, with an engine of its own: a replica."""
        from promptcache.server import SchemaFolder, create_app

        folder = None if self.schema_folder is None else SchemaFolder(self.schema_folder)
        engine = self.load(self.read_schemas())
        return create_app(engine, self.settings(), keys=self.read_keys(), schema_folder=folder)

    def check_ray(self) -> None:
        """Refuse what several replicas cannot do: a schema that a client adds would reach one replica only."""
        if self.admin_key_file is not None and self.schema_folder is None:
            raise UsageMistake("--admin-key-file with --ray needs --schema-folder, so that schemas reach all replicas")
        if find_spec("ray") is None:
            raise EnvironmentMissing("--ray needs 'ray': pip install 'promptcache[ray]' brings it")


@click.command("serve", cls=_ServeCommand, context_settings={"auto_envvar_prefix": "PROMPTCACHE"})
@click.option(
    "--config",
    metavar="FILE",
    type=FILE,
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="TOML file with values of these options: max_rows = 16.",
)
@collected(
    "options",
    (*_FILES, *engine_options(promote="auto"), _MEMORY, *declared_options(ServerSettings, served_model_name=None)),
    ServeOptions.of,
)
@grouped_option(_PROCESS, "--host", metavar="HOST", default="127.0.0.1", help="Address to listen on.")
@grouped_option(
    _PROCESS,
    "--port",
    metavar="PORT",
    type=Value(whole(0, 65535), "port"),
    default=8000,
    help="Port to listen on; 0 takes a free one.",
)
@grouped_option(_PROCESS, "--insecure", is_flag=True, help="Listen on a public address without keys.")
@grouped_option(_PROCESS, "--ray", is_flag=True, help="Start Ray Serve on this machine, with replicas of the server.")
@grouped_option(
    _PROCESS, "--replicas", metavar="N", type=Value(whole(1), "replicas"), default=1, help="Replicas, with --ray."
)
def command(options: ServeOptions, host: str, port: int, insecure: bool, ray: bool, replicas: int) -> None:
    """Answer prompts over HTTP, with the API of OpenAI.

    Schemas are encoded before the first answer. SIGTERM ends the server once running requests are answered.

    Each option can also be set in the environment, as PROMPTCACHE_MAX_ROWS=16, or in the file of --config.

    Example: promptcache serve --schema helpdesk.xml --model FOLDER --store kept
    """
    with ending(as_json=False):
        schemas = options.read_schemas()
        for package in ("fastapi", "prometheus_client", "uvicorn"):
            if find_spec(package) is None:
                raise EnvironmentMissing(f"this needs '{package}': pip install 'promptcache[server]' brings it")
        if ray:
            if not port:
                raise UsageMistake("--port 0: with --ray, name a port")
            options.check_ray()
        elif replicas > 1:
            raise UsageMistake("--replicas is for --ray; without Ray, start several servers behind a balancer")
        from promptcache.server import SchemaFolder, create_app, log_event, raise_file_limit, serve, start_log

        settings, keys = options.settings(), options.read_keys()
        folder = None if options.schema_folder is None else SchemaFolder(options.schema_folder)
        if keys.metrics and not keys.clients:
            raise UsageMistake("--metrics-key-file needs --api-key-file: without it everyone may read the metrics")
        if not (insecure or keys.clients or _is_loopback(host)):
            raise UsageMistake(
                f"--host {host} without --api-key-file: everyone could use the model; --insecure allows it"
            )
        try:
            raise_file_limit(settings.max_connections)
        except InvalidValue as error:
            raise UsageMistake(f"--max-connections: {error}") from None
        asyncio.run(_check_address(host, port))
        if ray:
            _serve_ray(settings, host, port, replicas, options)
            return
        app = create_app(options.load(schemas), settings, keys=keys, schema_folder=folder)
        start_log()
        if not serve(app, host=host, port=port, started=lambda url: log_event("listening", url=url)):
            log_event("ended", error="worker_dead")
            raise Exit(ExitCode.ENVIRONMENT)


def ray_application(args: dict[str, Any]) -> Application:
    """Return the application of Ray Serve. In its configuration, `args` are options: `max_rows: 16`."""
    from promptcache.scale.ray_app import application

    if found := sorted(_OF_RAY & args.keys()):
        raise UsageMistake(f"args.{found[0]}: Ray's own configuration has this")
    made = _as_defaults(args, command, "args")
    try:
        options = ServeOptions.of(command.make_context("promptcache serve", [], default_map=made).params)
    except click.UsageError as error:
        raise UsageMistake(f"args: {error.format_message()}") from None
    options.check_ray()
    return application(options.make_app, options.settings())


def _serve_ray(settings: ServerSettings, host: str, port: int, replicas: int, options: ServeOptions) -> None:
    from promptcache.scale.ray_app import application, serve_here

    num_cpus = max(1, (os.cpu_count() or 1) // replicas)
    made = application(options.make_app, settings, num_replicas=replicas, num_cpus=num_cpus)
    tell(f"starting Ray, which takes half a minute; replicas: {replicas}")
    serve_here(
        made, host=host, port=port, num_cpus=num_cpus * replicas, started=lambda url: tell(f"listening on {url}")
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _check_address(host: str, port: int) -> None:
    """Refuse an address before the model is loaded. It is bound as uvicorn does, and closed without listening."""
    try:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).rpartition(": ")[2]
        else:
            reason = "not the name of a host"  # a part is empty or too long to be encoded
        raise EnvironmentMissing(
            f"--host {host} --port {port}: {reason}; name an address of this machine and a free port"
        ) from None
    server.close()
