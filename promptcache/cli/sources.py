"""The documents that a command has read, by name, and the context of the templates among them.

Comes in: names. Goes out: which documents were read. This file knows no diagnostics.
"""

from __future__ import annotations

from collections.abc import Iterable

from promptcache.cli.contexts import TemplateContext


class Sources:
    """Remembers which documents were read; `context` is what `--context` gives the templates among them."""

    def __init__(self) -> None:
        self.context: TemplateContext | None = None
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Remember a document by the name that its spans carry."""
        self._names[name] = None

    @property
    def names(self) -> Iterable[str]:
        """Of the documents."""
        return self._names

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def check_context(self) -> None:
        """Raise `ContextMistake` where values were given and no template was there for them."""
        if self.context is not None:
            self.context.check_use()
