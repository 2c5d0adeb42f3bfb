"""`--context`: the values that templates use.

Comes in: a JSON file. Goes out: its data, which remembers whether a template was there for it. This file renders
nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptcache.diagnostics import PromptCacheError

_MAX_BYTES = 8 * 1024 * 1024


class ContextMistake(PromptCacheError):
    """The file of a context holds none, or there is no template that it could be for."""


@dataclass(slots=True)
class TemplateContext:
    """The values for templates; `used` tells whether one was rendered."""

    file: Path
    values: dict[str, Any] = field(repr=False)
    used: bool = False

    def check_use(self) -> None:
        """Raise `ContextMistake` where no template was read."""
        if not self.used:
            raise ContextMistake("--context is for templates, *.xml.j2, and none was read")


def read_context(path: Path) -> TemplateContext:
    """Read a JSON object.

    Raises:
        ContextMistake: the file holds none.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ContextMistake(f"--context {path}: the file has more than {_MAX_BYTES} bytes")
    try:
        values = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as fault:
        raise ContextMistake(f"--context {path} is not JSON: {fault}") from None
    if not isinstance(values, dict):
        raise ContextMistake(f'--context {path}: an object is expected, as {{"name": "value"}}')
    return TemplateContext(path, values)
