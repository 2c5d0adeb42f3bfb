"""Options that are made from declared fields: settings of an engine and a server, options of an answer.

`promptcache.settings` and `promptcache.options` declare them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptcache.cli.exits import UsageMistake
from promptcache.cli.options import Decorated, arguments_option, grouped_option, model_option, store_option
from promptcache.declared import Declared, declared, defaults
from promptcache.diagnostics import BYTES, InvalidValue, Kind, size_text
from promptcache.options import OPTIONS, with_sampling
from promptcache.settings import EngineSettings

if TYPE_CHECKING:
    from promptcache.engine import Engine
    from promptcache.structured import Tool

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_SUFFIXES = {"bytes": "_bytes", "seconds": "_s"}
"""Ends of names of fields that their options do not have, because the help of an option says its unit."""


class Value(click.ParamType[Any]):
    """The values of a kind, as text. A number of bytes is a size: "8 GB", "512MiB", "1000000"."""

    def __init__(self, kind: Kind, name: str) -> None:
        """Create the type of the values of an option of this name."""
        self._kind = kind
        last = name.rpartition("-")[2].upper()
        of_base = {str: last, float: "NUMBER"}.get(kind.base, "N")
        self.name = {"bytes": "SIZE", "seconds": "SECONDS"}.get(kind.unit, of_base)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that a text stands for."""
        if self._kind.unit == "bytes":
            parts = _SIZE.fullmatch(str(value))
            if parts is None or parts[2].lower() not in _UNITS:
                self.fail(f"{value!r} is no size; write it like 500MB, 8GB or 2GiB", param, ctx)
            read: Any = int(min(float(parts[1]) * _UNITS[parts[2].lower()], 2**63))
        else:
            try:
                read = self._kind.base(value)
            except ValueError:
                read = None
        if read is None or not self._kind.takes(read):
            self.fail(f"'{value}' is not allowed: {self._kind.words} is expected", param, ctx)
        return read


def parameter_name(name: str, what: Declared) -> str:
    """Return the name that an option has in Python, in the environment and in files."""
    return name.removesuffix(_SUFFIXES.get(what.kind.unit, ""))


def declared_option(name: str, what: Declared, default: Any = None) -> Callable[[Decorated], Decorated]:
    """Return the option of a declared field. Where the default is a tuple, it may be given several times."""
    kind, word = what.kind, parameter_name(name, what).replace("_", "-")
    if kind.base is bool:
        words = f"--{word}" if default is False else f"--{word}/--no-{word}"
        return grouped_option(what.group, words, is_flag=True, default=default, help=what.words)
    if isinstance(default, tuple):  # the settings check the whole list
        anything = Value(kind._replace(takes=lambda _: True), word)
        words = f"{what.words[:-1]}; may be given several times."
        return grouped_option(what.group, f"--{word}", type=anything, default=default, multiple=True, help=words)
    made = click.Choice(kind.choices) if kind.choices else Value(kind, word)
    shown = size_text(default) if kind.unit == "bytes" and default is not None else default
    return grouped_option(what.group, f"--{word}", type=made, default=shown, help=what.words)


def declared_options(
    owner: type, only: Collection[str] | None = None, **own: Any
) -> Iterator[Callable[[Decorated], Decorated]]:
    """Yield the options of the declared fields of a dataclass.

    Args:
        only: Names of fields; None means all that commands have.
        own: Defaults, where they are other ones.
    """
    for name, what in declared(owner).items():
        if what.on_command_line and (only is None or name in only):
            yield declared_option(name, what, {**defaults(owner), **own}[name])


def take_declared(owner: type, values: dict[str, Any]) -> dict[str, Any]:
    """Take the values of the declared fields of a dataclass out of those of a command, by field."""
    names = {parameter_name(name, what): name for name, what in declared(owner).items() if what.on_command_line}
    return {names[each]: values.pop(each) for each in names.keys() & values.keys()}


def collected(
    name: str, options: Iterable[Callable[[Any], Any]], collect: Callable[[dict[str, Any]], object]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options to a command.

    Args:
        name: The parameter of the command that takes their values.
        options: The options.
        collect: Takes the values of the options out of all that the command has, and returns them in one object.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def taking(**values: Any) -> Any:
            made = collect(values)
            return command(**{name: made}, **values)

        for option in reversed([*options]):
            taking = option(taking)
        return taking

    return decorate


repair_option = declared_option("repair", OPTIONS["repair"])
limit_option = grouped_option(
    "Cached KV",
    "--limit",
    type=Value(BYTES, "limit"),
    help='Maximum size of the folder of --store, such as "8 GB"; default: no limit.',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The values of `engine_options`.

    Attributes:
        store: A folder or URL; None keeps KV in memory only.
        limit, memory: Maximum bytes of the folder, and of KV in memory.
        settings: Those of `EngineSettings` that commands have.
    """

    model: str
    device: str | None
    dtype: str
    store: str | None
    limit: int | None
    memory: int | None
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, values: dict[str, Any]) -> EngineOptions:
        """Take the options out of the values of a command."""
        place = {name: values.pop(name, None) for name in ("store", "limit", "memory")}  # of those that it has
        model = {name: values.pop(name) for name in ("model", "device", "dtype")}
        return cls(**model, **place, settings=take_declared(EngineSettings, values))

    @property
    def keep(self) -> str:
        """The name of the codec."""
        return str(self.settings["keep"])

    def load(self) -> Engine:
        """Load the model, and return an engine over the store."""
        if self.limit is not None and self.store is None:
            raise UsageMistake("--limit is that of a store; say where it is with --store DIR")
        from promptcache.cli.console import progress, show_loading

        with progress() as show:
            show_loading(show, self.model)
            from promptcache.engine import Engine
            from promptcache.kv import StoreConfig, config_of

            config = StoreConfig() if self.store is None else config_of(self.store)
            if self.limit is not None and config.folder is None:
                raise UsageMistake(f"--limit: {self.store} is no folder, and only folders have a limit")
            store = replace(config, disk_bytes=self.limit, memory_bytes=self.memory)
            logging.getLogger("promptcache.kv").addHandler(logging.NullHandler())  # commands print faults themselves
            return Engine.from_pretrained(
                self.model, device=self.device, dtype=self.dtype, store=store, **self.settings
            )


OF_ENCODINGS = ("context_length", "keep", "positions")
"""The settings of an engine that change what it encodes."""

OF_ONE_ANSWER = (*OF_ENCODINGS, "strict_template")
"""The settings of an engine that change its first answer: others concern later ones."""


def engine_options(*, store: str | None = None, has_store: bool = True, **own: Any) -> Iterator[Callable[..., Any]]:
    """Yield the options of an engine.

    Args:
        store: The default of `--store`.
        has_store: Whether the command keeps KV anywhere.
        own: Arguments of `declared_options`.
    """
    yield model_option()
    yield grouped_option(
        "Model", "--device", metavar="DEVICE", help="cpu, cuda, cuda:1, ...; default: a GPU if there is one."
    )
    yield grouped_option(
        "Model",
        "--dtype",
        type=click.Choice(["auto", "float16", "bfloat16", "float32", "float64"]),
        default="auto",
        help="Dtype of the weights; auto is the dtype of the checkpoint.",
    )
    if has_store:
        yield store_option(f"Folder or URL to keep KV in{'.' if store else '; default: in memory only.'}", store)
        yield limit_option
    yield from declared_options(EngineSettings, **own)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """The values of the options of `run` and `chat`.

    Attributes:
        arg: The words of `--arg`.
        answer: The options of answers that are given, with `do_sample` if a temperature is given.
    """

    engine: EngineOptions
    arg: tuple[str, ...]
    answer: Mapping[str, Any]
    tools: Path | None

    @classmethod
    def of(cls, values: dict[str, Any]) -> AnswerOptions:
        """Take the options out of the values of a command."""
        answer = {name: value for name in _ANSWER if (value := values.pop(name)) is not None}
        own = {name: values.pop(name) for name in ("arg", "tools")}
        return cls(engine=EngineOptions.of(values), answer=with_sampling(answer), **own)

    def read_tools(self, defined: Iterable[Any]) -> list[Any]:
        """Return the tools of `--tools`, and those with other names that a prompt defines."""
        from promptcache.structured import read_tools

        own: tuple[Tool, ...] = ()
        if self.tools is not None:
            try:
                own = read_tools(json.loads(self.tools.read_text(encoding="utf-8")))
            except (InvalidValue, ValueError, RecursionError) as error:
                raise UsageMistake(f"--tools {self.tools}: {error}") from None
        names = {each.name for each in own}
        others = (each for each in defined if each["function"]["name"] not in names)
        return [*(each.definition for each in own), *others]


_ANSWER = tuple(name for name, option in OPTIONS.items() if option.on_command_line)


def answer_options(only: Collection[str] | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options of answers, and the settings of the engine in `only`; None: all."""
    options = (
        arguments_option,
        *(declared_option(name, OPTIONS[name]) for name in _ANSWER),
        grouped_option(
            "Answer",
            "--tools",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The answer may call these tools: a JSON list in the form of OpenAI.",
        ),
        *engine_options(only=only),
    )
    return collected("options", options, AnswerOptions.of)
