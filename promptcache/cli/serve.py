"""`promptcache serve`: an OpenAI-compatible HTTP server over one model.

An option is taken from the command line, else from `PROMPTCACHE_NAME`, else from the file of `--config`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import tomllib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.exceptions import Exit

from promptcache.cli.console import progress, show_loading
from promptcache.cli.engine import load_engine, optional_store
from promptcache.cli.exits import EnvironmentMissing, ExitCode, UsageMistake, ending
from promptcache.cli.files import read_schemas
from promptcache.cli.options import (
    FILE,
    Decorated,
    Size,
    context_option,
    device_option,
    dtype_option,
    keep_option,
    limit_option,
    model_option,
    store_option,
)
from promptcache.cli.output import tell
from promptcache.cli.sources import Sources, read_context
from promptcache.diagnostics import BYTES_ABOVE_0, SECONDS, InvalidValue
from promptcache.language import CheckedSchema
from promptcache.tokenizer import local_folder

if TYPE_CHECKING:
    from ray.serve import Application

    from promptcache.engine import Engine
    from promptcache.server import ApiKeys, ServerSettings

_MAX_CONFIG_BYTES = 2**20
_SEVERAL = ("schema", "allow_host", "allow_origin")
_OF_RAY = {"host", "port", "insecure", "ray", "replicas"}
"""Options that an application of Ray Serve has no use for."""
_CONFIG = f"{__name__}.config"
"""The path of `--config` in the data of a context."""


def _read_config(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Make the values of a TOML file the defaults of all options."""
    if path is None or ctx.resilient_parsing:
        return
    try:
        with path.open("rb") as file:
            values = tomllib.loads(file.read(_MAX_CONFIG_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise EnvironmentMissing(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageMistake(f"--config {path} is not TOML: {error}") from None
    known = {parameter.name for parameter in ctx.command.params if parameter.name not in ("config", "help")}
    named = {name.replace("-", "_"): value for name, value in values.items()}
    if len(named) < len(values):
        raise UsageMistake(f"--config {path}: an option is there twice, with - and with _")
    if unknown := sorted(named.keys() - known):
        raise UsageMistake(f"--config {path}: there is no option '{unknown[0]}'")
    lists = {name: _as_list(named.pop(name)) for name in _SEVERAL if name in named}
    for name, value in [*named.items(), *((name, each) for name, values in lists.items() for each in values)]:
        if isinstance(value, list | dict):
            kind = "list" if isinstance(value, list) else "table"
            raise UsageMistake(f"--config {path}: '{name}' is a {kind}; text, a number, true or false is expected")
    several = {name: [*map(str, values)] for name, values in lists.items()}
    ctx.default_map = {name: str(value) for name, value in named.items()} | several
    ctx.meta[_CONFIG] = path


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


class _ServeCommand(click.Command):
    """A command whose errors name the source of a value that is not allowed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if error.param is not None and error.param.name is not None and (place := _place(ctx, error.param.name)):
                error.param_hint = f"{error.param.get_error_hint(ctx)} from {place}"
            raise


def _place(ctx: click.Context, name: str) -> str | None:
    """Return where the value of an option comes from, or None for the command line and defaults."""
    match ctx.get_parameter_source(name):
        case ParameterSource.ENVIRONMENT:
            return f"{ctx.auto_envvar_prefix}_{name.upper()}"
        case ParameterSource.DEFAULT_MAP:
            return f"--config {ctx.meta[_CONFIG]}"
        case _:
            return None


class _Seconds(click.ParamType[float]):
    """A time that timers can wait for."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = click.FLOAT.convert(value, param, ctx)
        if not SECONDS.takes(seconds):
            self.fail(f"{value} is not allowed: {SECONDS.words} is expected", param, ctx)
        return seconds


def _seconds(name: str, default: float, words: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, metavar="SECONDS", type=_Seconds(), default=default, help=words)


def _count(name: str, default: int, words: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, metavar="N", type=click.IntRange(min=1), default=default, help=words)


def _size(name: str, default: int, words: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, metavar="SIZE", type=Size(BYTES_ABOVE_0), default=default, help=words)


@click.command("serve", cls=_ServeCommand, context_settings={"auto_envvar_prefix": "PROMPTCACHE"})
@click.option(
    "--config",
    metavar="FILE",
    type=FILE,
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="TOML file with values of these options, such as: max_rows = 16.",
)
@click.option(
    "--schema",
    metavar="FILE",
    type=click.Path(),  # in the environment, files are separated as in PATH
    multiple=True,
    help="A schema to serve; may be given several times.",
)
@click.option(
    "--schema-folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep schemas that clients add over HTTP in this folder, and serve those that it has.",
)
@model_option()
@device_option
@dtype_option
@store_option("Keep KV in this folder or under this URL; default: in memory only.", default=None)
@limit_option
@click.option("--memory", metavar="SIZE", type=Size(), help="Maximum KV in memory; default: a quarter of the memory.")
@click.option(
    "--promote",
    type=click.Choice(["auto", "off"]),
    default="auto",
    help="In idle time, prefill modules together that are used together again.",
)
@keep_option
@context_option
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes a free port.")
@click.option("--api-key-file", metavar="FILE", type=FILE, help="Keys of clients, one a line.")
@click.option("--admin-key-file", metavar="FILE", type=FILE, help="Keys that may also change schemas, one a line.")
@click.option("--metrics-key-file", metavar="FILE", type=FILE, help="Keys that may read metrics only, one a line.")
@click.option(
    "--allow-host",
    metavar="NAME",
    multiple=True,
    help="A name under which a server without keys answers, beside localhost; may be given several times.",
)
@click.option(
    "--allow-origin",
    metavar="ORIGIN",
    multiple=True,
    help="Let pages of this origin read answers in a browser (CORS), or of all with *; may be given several times.",
)
@click.option("--insecure", is_flag=True, help="Listen on a public address without keys.")
@_count("--max-rows", 32, "Requests that are computed together.")
@_count("--step-tokens", 64, "Tokens of prompts in one forward pass.")
@_size("--tail-bytes", 2**30, "Maximum KV of running requests.")
@_count("--max-waiting", 256, "Requests that may wait.")
@_count("--max-waiting-tokens", 65536, "Tokens of waiting requests, prompt and answer.")
@_count("--max-new-tokens", 1024, "Maximum tokens of one answer.")
@_count("--max-connections", 512, "Connections above which waiting ones are closed, and requests refused.")
@_size("--max-body", 2**20, "Maximum size of a request.")
@_seconds("--queue-timeout", 30.0, "Time that a request may wait.")
@_seconds("--request-timeout", 600.0, "Time that a request may take.")
@_seconds("--drain", 30.0, "Time that running requests have after SIGTERM.")
@click.option("--ray", is_flag=True, help="Start Ray Serve on this machine, with replicas of the server.")
@_count("--replicas", 1, "Replicas, with --ray.")
def command(host: str, port: int, insecure: bool, ray: bool, replicas: int, **options: Any) -> None:
    """Answer prompts over HTTP, with the API of OpenAI.

    Schemas are encoded before the first answer. SIGTERM ends the server once running requests are answered.
    """
    with ending(as_json=False, context=options["context"]) as sources:
        checked = _read_schemas(options, sources)
        check_server_installed()
        if ray:
            _check_ray(port, options)
        elif replicas > 1:
            raise UsageMistake("--replicas is for --ray; without Ray, start several servers behind a balancer")
        from promptcache.server import ServedFiles, create_app, log_event, raise_file_limit, serve, start_log

        settings = _settings(options)
        if settings.keys.metrics and not settings.keys.clients:
            raise UsageMistake("--metrics-key-file needs --api-key-file: without it everyone may read the metrics")
        if not (insecure or settings.keys.clients or _is_loopback(host)):
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
        app = create_app(_load(checked, options), settings)
        start_log()

        def files() -> ServedFiles:
            return ServedFiles(schemas=_read_schemas(options, _sources(options)), keys=_api_keys(options))

        def started(url: str) -> None:
            log_event("listening", url=url)

        if not serve(app, host=host, port=port, started=started, files=files):
            log_event("ended", error="worker_dead")
            raise Exit(ExitCode.ENVIRONMENT)


def ray_application(args: dict[str, Any]) -> Application:
    """Return the application of Ray Serve. In its configuration, `args` are options as in the file of `--config`.

    Raises:
        UsageMistake: An option is unknown or has a wrong value.
    """
    from promptcache.scale.ray_app import application

    if found := sorted(_OF_RAY & args.keys()):
        raise UsageMistake(f"args.{found[0]}: Ray's own configuration has this")
    words = [f"--{name.replace('_', '-')}={each}" for name, value in args.items() for each in _as_list(value)]
    try:
        options = command.make_context("promptcache serve", words).params
    except click.UsageError as error:
        raise UsageMistake(f"args: {error.format_message()}") from None
    _check_ray(options["port"], options)
    return application(partial(_make_app, options), _settings(options))


def _make_app(options: dict[str, Any]) -> Any:
    """Return the application of the server, with an engine of its own: a replica."""
    from promptcache.server import create_app

    schemas = _read_schemas(options, _sources(options))
    return create_app(_load(schemas, options), _settings(options))


def _serve_ray(settings: ServerSettings, host: str, port: int, replicas: int, options: dict[str, Any]) -> None:
    from promptcache.scale.ray_app import application, serve_here

    num_cpus = max(1, (os.cpu_count() or 1) // replicas)
    made = application(partial(_make_app, options), settings, num_replicas=replicas, num_cpus=num_cpus)
    tell(f"starting Ray, which takes half a minute; replicas: {replicas}")
    serve_here(
        made, host=host, port=port, num_cpus=num_cpus * replicas, started=lambda url: tell(f"listening on {url}")
    )


def _sources(options: dict[str, Any]) -> Sources:
    sources = Sources()
    sources.context = None if options["context"] is None else read_context(options["context"])
    return sources


def _read_schemas(options: dict[str, Any], sources: Sources) -> tuple[CheckedSchema, ...]:
    """Read the files of `--schema`. Errors are those of `read_schemas` and `_check_names`."""
    schemas = read_schemas(options["schema"], sources)
    _check_names(options["schema"], schemas)
    return schemas


def _check_names(files: tuple[str, ...], schemas: tuple[CheckedSchema, ...]) -> None:
    """Refuse two schemas of one name.

    Raises:
        UsageMistake: There are two; the message has the second file.
    """
    names = [each.name for each in schemas]
    for number, (file, name) in enumerate(zip(files, names, strict=True)):
        if name in names[:number]:
            raise UsageMistake(f"--schema {file}: another file has the schema '{name}' too")


def check_server_installed() -> None:
    """Refuse a command that needs the server.

    Raises:
        EnvironmentMissing: A package of the extra `server` is not installed.
    """
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            raise EnvironmentMissing(f"this needs '{package}': pip install 'promptcache[server]' brings it")


def _check_ray(port: int, options: dict[str, Any]) -> None:
    """Refuse what several replicas cannot do.

    Raises:
        EnvironmentMissing: Ray is not installed.
        UsageMistake: Ray takes no free port, or a schema that a client adds would reach one replica only.
    """
    if not port:
        raise UsageMistake("--port 0: with --ray, name a port")
    if options["admin_key_file"] is not None and options["schema_folder"] is None:
        raise UsageMistake("--admin-key-file with --ray needs --schema-folder, so that schemas reach all replicas")
    if find_spec("ray") is None:
        raise EnvironmentMissing("--ray needs 'ray': pip install 'promptcache[ray]' brings it")


def _settings(options: dict[str, Any]) -> ServerSettings:
    from promptcache.decode import ServiceLimits
    from promptcache.kv import Codec
    from promptcache.server import SchemaFolder, ServerSettings

    folder = options["schema_folder"]
    limits = ServiceLimits(
        max_rows=options["max_rows"],
        step_tokens=options["step_tokens"],
        tail_bytes=options["tail_bytes"],
        max_waiting=options["max_waiting"],
        max_waiting_tokens=options["max_waiting_tokens"],
        queue_timeout_s=options["queue_timeout"],
    )
    model = options["model"]
    return ServerSettings(
        model=model if model == "demo" or local_folder(model) is None else Path(model).resolve().name,
        keys=_api_keys(options),
        hosts=options["allow_host"],
        origins=options["allow_origin"],
        schema_folder=None if folder is None else SchemaFolder(folder),
        keep=Codec(options["keep"]),
        limits=limits,
        max_new_tokens=options["max_new_tokens"],
        request_timeout_s=options["request_timeout"],
        max_body_bytes=options["max_body"],
        max_connections=options["max_connections"],
        drain_s=options["drain"],
    )


def _api_keys(options: dict[str, Any]) -> ApiKeys:
    """Return the keys of the files of keys. Errors are those of `_keys`."""
    from promptcache.server import ApiKeys

    return ApiKeys(
        clients=_keys("api_key_file", options),
        admins=_keys("admin_key_file", options),
        metrics=_keys("metrics_key_file", options),
    )


def _keys(name: str, options: dict[str, Any]) -> frozenset[str]:
    """Return the digests of the keys in the file of an option; without the option, there are none.

    Raises:
        UsageMistake: The file is not a file of keys.
        OSError: The file cannot be read.
    """
    from promptcache.server import read_keys

    path = options[name]
    try:
        return frozenset() if path is None else read_keys(path)
    except InvalidValue as error:
        raise UsageMistake(f"--{name.replace('_', '-')} {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _check_address(host: str, port: int) -> None:
    """Refuse an address before the model is loaded. It is bound as uvicorn does, and closed without listening.

    Raises:
        EnvironmentMissing: Nothing can listen on it.
    """
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


def _load(schemas: tuple[CheckedSchema, ...], options: dict[str, Any]) -> Engine:
    """Load the model and add the schemas.

    Raises:
        PromptCacheError: The model, the device or the store cannot be used, or a schema does not fit the model. A store
            that cannot be written is refused: every start of the server would encode all schemas.
    """
    store = optional_store(options["store"], options["limit"], memory_bytes=options["memory"])
    with progress() as show:
        show_loading(show, options["model"])
        engine = load_engine(
            options["model"],
            options["device"],
            options["dtype"],
            store,
            promote=options["promote"],
        )
    engine.store.probe()
    for each in schemas:
        engine.add_schema(each.source, keep=options["keep"])
    return engine
