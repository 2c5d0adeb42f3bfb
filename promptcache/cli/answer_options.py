"""The options of the commands that answer prompts: `run` and `chat`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcache.cli import options
from promptcache.cli.console import progress, show_loading
from promptcache.cli.engine import load_engine, optional_store, sampling

if TYPE_CHECKING:
    from promptcache.engine import Engine
    from promptcache.language import Repair

_OPTIONS = (
    options.model_option(),
    options.device_option,
    options.dtype_option,
    options.adapter_option,
    options.max_new_tokens_option,
    options.arguments_option,
    options.repair_option,
    options.seed_option,
    options.temperature_option,
    options.store_option("Keep KV in this folder or under this URL; default: in memory only.", default=None),
    options.limit_option,
    options.keep_option,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """The values of these options; `arg` has the words of `--arg`."""

    model: str
    device: str | None
    dtype: str
    adapter: Path | None
    max_new_tokens: int | None
    arg: tuple[str, ...]
    repair: Repair | None
    seed: int | None
    temperature: float | None
    store: str | None
    limit: int | None
    keep: str

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

    def load_engine(self) -> Engine:
        """Load the model and open the store. Raises the errors of `optional_store` and `load_engine`."""
        config = optional_store(self.store, self.limit)
        with progress() as show:
            show_loading(show, self.model)
            return load_engine(self.model, self.device, self.dtype, config, adapter=self.adapter)


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which takes their values as `options`."""

    @wraps(command)
    def collected(**values: Any) -> None:
        own = {field.name: values.pop(field.name) for field in fields(AnswerOptions)}
        command(options=AnswerOptions(**own), **values)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected
