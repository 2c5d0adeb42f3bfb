"""The options of the commands that answer prompts: `run` and `chat`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptcache.cli import options
from promptcache.cli.console import progress, show_loading
from promptcache.cli.engine import load_engine, optional_store
from promptcache.cli.exits import UsageMistake
from promptcache.diagnostics import InvalidValue
from promptcache.options import OPTIONS, with_sampling
from promptcache.structured import Tool, read_tools

if TYPE_CHECKING:
    from promptcache.engine import Engine

_ANSWER = tuple(name for name, option in OPTIONS.items() if option.on_command_line)
_OPTIONS = (
    options.model_option(),
    options.device_option,
    options.dtype_option,
    options.arguments_option,
    *map(options.answer_option, _ANSWER),
    options.store_option("Keep KV in this folder or under this URL; default: in memory only.", default=None),
    options.limit_option,
    options.keep_option,
    click.option(
        "--tools",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The answer may call these tools: a JSON list in the form of OpenAI.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """The values of these options.

    Attributes:
        arg: The words of `--arg`.
        answer: The options of answers that are given, with `do_sample` if a temperature is given.
    """

    model: str
    device: str | None
    dtype: str
    arg: tuple[str, ...]
    answer: Mapping[str, Any]
    store: str | None
    limit: int | None
    keep: str
    tools: Path | None

    def read_tools(self, defined: Iterable[Any]) -> list[Any]:
        """Return the tools of `--tools`, and those with other names that a prompt defines.

        Raises:
            UsageMistake: The file has no tools.
        """
        own: tuple[Tool, ...] = ()
        if self.tools is not None:
            try:
                own = read_tools(json.loads(self.tools.read_text(encoding="utf-8")))
            except (InvalidValue, ValueError, RecursionError) as error:
                raise UsageMistake(f"--tools {self.tools}: {error}") from None
        names = {each.name for each in own}
        others = (each for each in defined if each["function"]["name"] not in names)
        return [*(each.definition for each in own), *others]

    def load_engine(self) -> Engine:
        """Load the model and open the store. Raises the errors of `optional_store` and `load_engine`."""
        config = optional_store(self.store, self.limit)
        with progress() as show:
            show_loading(show, self.model)
            return load_engine(self.model, self.device, self.dtype, config)


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which takes their values as `options`."""

    @wraps(command)
    def collected(**values: Any) -> None:
        answer = {name: value for name in _ANSWER if (value := values.pop(name)) is not None}
        own = {field.name: values.pop(field.name) for field in fields(AnswerOptions) if field.name != "answer"}
        command(options=AnswerOptions(**own, answer=with_sampling(answer)), **values)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected
