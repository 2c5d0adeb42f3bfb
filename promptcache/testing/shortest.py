"""The shortest way to name modules in a prompt: which to leave out, and which to name by path or inside one another.

Comes in: the modules of a prompt, which of them have arguments, and which a union would take by default. Goes out:
references. Lengths are those of the XML, without the arguments: these cost the same wherever they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from promptcache.language.schema import join_path


class _Named(NamedTuple):
    """A reference to a module, relative to the one around it, with those inside it."""

    path: str
    relative: str
    inner: tuple[_Named, ...]


class Shortest:
    """Weighs, for each module, naming it against leaving it to what is named inside it, or to a default."""

    def __init__(self, modules: Sequence[str], given: Set[str], defaults: Set[str]) -> None:
        self._given = given
        self._defaults = defaults
        self._below: dict[str, list[str]] = {}
        for path in modules:
            self._below.setdefault(path.rpartition("/")[0], []).append(path)
        self._known: dict[tuple[str, str], tuple[int, tuple[_Named, ...]]] = {}

    def references(self) -> Iterator[tuple[str, str, str]]:
        """Yield each reference: its module, the one whose reference it stands in, and the path from there to it."""
        yield from self._walk(self._inside("", "")[1], "")

    def _walk(self, named: Sequence[_Named], outer: str) -> Iterator[tuple[str, str, str]]:
        for each in named:
            yield each.path, outer, each.relative
            yield from self._walk(each.inner, each.path)

    def _inside(self, path: str, prefix: str) -> tuple[int, tuple[_Named, ...]]:
        """Return the length of all references below a module, and the references."""
        parts = [self._shortest(child, prefix) for child in self._below.get(path, ())]
        return sum(length for length, _ in parts), tuple(each for _, named in parts for each in named)

    def _shortest(self, path: str, prefix: str) -> tuple[int, tuple[_Named, ...]]:
        """Return the same for a module and what is below it, where references must begin with `prefix`."""
        if (path, prefix) not in self._known:
            self._known[path, prefix] = self._weighed(path, prefix)
        return self._known[path, prefix]

    def _weighed(self, path: str, prefix: str) -> tuple[int, tuple[_Named, ...]]:
        relative = join_path(prefix, path.rpartition("/")[2])
        length, inner = self._inside(path, "")
        tag, start = ("use", f'use module="{relative}"') if prefix else (relative, relative)
        length += len(f"<{start}></{tag}>" if inner else f"<{start}/>")
        if path not in self._given:
            without, left = self._inside(path, relative)
            if (left or path in self._defaults) and without < length:
                return without, left
        return length, (_Named(path, relative, inner),)
