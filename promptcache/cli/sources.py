"""The documents that a command has read, and the values that `--context` gives to the templates among them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptcache.diagnostics import PromptCacheError

_MAX_CONTEXT_BYTES = 8 * 1024 * 1024


class ContextMistake(PromptCacheError):
    """The file of `--context` is not a JSON object, or no template was read."""


@dataclass(slots=True)
class TemplateContext:
    """Values for templates. `used` becomes true when a template is rendered."""

    file: Path
    values: dict[str, Any] = field(repr=False)
    used: bool = False


class Sources:
    """The names of the documents that were read; `context` holds the values of `--context`."""

    def __init__(self) -> None:
        self.context: TemplateContext | None = None
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Remember a document by the name that its spans carry."""
        self._names[name] = None

    @property
    def names(self) -> Iterable[str]:
        """Names of the documents, in the order of reading."""
        return self._names

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def check_context(self) -> None:
        """Raise `ContextMistake` if values were given and no template was read."""
        if self.context is not None and not self.context.used:
            raise ContextMistake("--context is for templates, *.xml.j2, and none was read")


def read_context(path: Path, option: str = "--context") -> TemplateContext:
    """Read the JSON object that an option names.

    Raises:
        ContextMistake: The file does not hold a JSON object.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(_MAX_CONTEXT_BYTES + 1)
    if len(data) > _MAX_CONTEXT_BYTES:
        raise ContextMistake(f"{option} {path}: the file has more than {_MAX_CONTEXT_BYTES} bytes")
    try:
        values = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as fault:
        raise ContextMistake(f'{option} {path} is not JSON, such as {{"name": "value"}}: {fault}') from None
    if not isinstance(values, dict):
        raise ContextMistake(f'{option} {path}: an object is expected, as {{"name": "value"}}')
    return TemplateContext(path, values)
