"""Places of a tier of files: a folder, and URLs whose file systems can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from promptcache.kv import FileTier, Store
from promptcache.kv.files.local import LocalFiles
from tests.kv.stored import shape


class FailingFiles(MemoryFileSystem):
    """Object store whose operations can fail in a test."""

    protocol = ("failing",)
    store: dict = {}  # noqa: RUF012 - as its parent keeps it
    pseudo_dirs = [""]  # noqa: RUF012
    before: Callable[[], object] = staticmethod(lambda: None)
    fail_on: frozenset[str] = frozenset()

    def _answer(self, name: str) -> None:
        if name in type(self).fail_on:
            type(self).before()

    def info(self, path: str, **named: object) -> dict:
        self._answer("info")
        return super().info(path, **named)

    def pipe_file(self, path: str, value: bytes, *rest: object, **named: object) -> None:
        self._answer("pipe_file")
        return super().pipe_file(path, value, *rest, **named)

    def rm_file(self, path: str) -> None:
        self._answer("rm_file")
        super().rm_file(path)


fsspec.register_implementation("failing", FailingFiles, clobber=True)


@contextmanager
def emptied() -> Iterator[None]:
    """Leave the file systems in memory empty and without faults."""
    try:
        yield
    finally:
        FailingFiles.fail_on, FailingFiles.before = frozenset(), staticmethod(lambda: None)
        for files in (MemoryFileSystem, FailingFiles):
            files.store.clear()
            files.pseudo_dirs[:] = [""]


@dataclass
class Place:
    """A location of a tier, and its files without the tier."""

    location: str

    def __post_init__(self) -> None:
        is_local = "://" not in self.location
        self.files, self.root = (LocalFiles(), self.location) if is_local else fsspec.core.url_to_fs(self.location)

    def tier(self, **options: object) -> FileTier:
        """Open a tier, as each process does."""
        return FileTier(self.location, **options)  # type: ignore[arg-type]

    def store(self) -> Store:
        """Return a store over a tier, with memory of its own."""
        return Store(shape(), (self.tier(),))

    def path(self, key: str) -> str:
        """Return the path of an encoding."""
        return f"{self.root}/encodings/{key}.safetensors"

    def put(self, key: str, data: bytes) -> None:
        """Replace the file of a key."""
        self.files.makedirs(f"{self.root}/encodings", exist_ok=True)
        if self.files.exists(self.path(key)):
            self.files.rm_file(self.path(key))  # mapped files stay as they are
        self.files.pipe_file(self.path(key), data)

    def names(self, part: str = "encodings") -> list[str]:
        """Return the names of the files in a subfolder."""
        folder = f"{self.root}/{part}"
        listed = self.files.ls(folder, detail=False) if self.files.exists(folder) else []
        return sorted(Path(path).name for path in listed)
