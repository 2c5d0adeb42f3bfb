"""The documents that a command has read, by name, for showing the lines that diagnostics point at.

Comes in: names and contents. Goes out: single lines. This file knows no diagnostics.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from promptcache.cli.contexts import TemplateContext
from promptcache.diagnostics import LanguageError


class Sources:
    """Remembers documents and finds lines in them; `context` is what `--context` gives the templates among them."""

    def __init__(self) -> None:
        self.context: TemplateContext | None = None
        self._contents: dict[str, str | bytes] = {}
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, content: str | bytes) -> None:
        """Remember a document under the name that its spans carry."""
        self._contents[name] = content

    @property
    def names(self) -> Iterable[str]:
        """Of the documents."""
        return self._contents

    def __contains__(self, name: str) -> bool:
        return name in self._contents

    def check_context(self) -> None:
        """Raise `ContextMistake` where values were given and no template was there for them."""
        if self.context is not None:
            self.context.check_use()

    def line(self, name: str, number: int) -> str | None:
        """Return line `number`, counted from 1, or None where there is no such line to show."""
        if name not in self._contents and not self._read(name):
            return None
        if name not in self._lines:
            content = self._contents[name]
            text = content if isinstance(content, str) else content.decode("utf-8-sig", errors="replace")
            self._lines[name] = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        lines = self._lines[name]
        return lines[number - 1] if number <= len(lines) else None

    def _read(self, name: str) -> bool:
        """Read a file that another document includes, when a line of it is to be shown."""
        from promptcache.language.source import read_document

        try:
            self.add(name, read_document(Path(name), LanguageError))
        except LanguageError:
            return False
        return True
