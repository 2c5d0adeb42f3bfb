"""The options of the commands that answer prompts: `run` and `chat`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from promptcache.cli import options
from promptcache.cli.console import progress, show_loading
from promptcache.cli.engine import load_engine, optional_store, sampling
from promptcache.cli.exits import UsageMistake
from promptcache.diagnostics import InvalidValue
from promptcache.structured import Tool, read_tools

if TYPE_CHECKING:
    from promptcache.engine import Engine
    from promptcache.language import Repair

_OPTIONS = (
    options.model_option(),
    options.device_option,
    options.dtype_option,
    options.max_new_tokens_option,
    options.arguments_option,
    options.repair_option,
    options.seed_option,
    options.temperature_option,
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
    """The values of these options; `arg` has the words of `--arg`."""

    model: str
    device: str | None
    dtype: str
    max_new_tokens: int | None
    arg: tuple[str, ...]
    repair: Repair | None
    seed: int | None
    temperature: float | None
    store: str | None
    limit: int | None
    keep: str
    tools: Path | None

    @property
    def repair_text(self) -> str | None:
        """The setting of `--repair` as engines take it."""
        return None if self.repair is None else str(self.repair)

    def generation(self) -> dict[str, Any]:
        """Return the options of generation.

        Raises:
            UsageMistake: `--temperature` is not a temperature.
        """
        limit = {} if self.max_new_tokens is None else {"max_new_tokens": self.max_new_tokens}
        seed = {} if self.seed is None else {"seed": self.seed}
        return sampling(self.temperature) | limit | seed

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
        own = {field.name: values.pop(field.name) for field in fields(AnswerOptions)}
        command(options=AnswerOptions(**own), **values)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected
