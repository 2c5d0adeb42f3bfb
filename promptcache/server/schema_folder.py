"""A folder with the documents of the schemas that clients have added, so that they survive a restart.

A schema has one file, whose name is made from its name. Servers may share a folder: each reads what others write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from promptcache.atomic import atomic_write
from promptcache.diagnostics import InvalidValue, PromptCacheError, SchemaError
from promptcache.engine import Engine
from promptcache.language import parse_schema, read_document

_SHOWN_CHARACTERS = 100  # of a name, in the name of its file


class SchemaFolder:
    """The files of schemas in a folder. Only one thread may change them at a time."""

    def __init__(self, folder: Path) -> None:
        """Open a folder. It is made if it does not exist.

        Raises:
            OSError: It cannot be made, or no file can be written there.
        """
        self._folder = folder
        self._read: dict[Path, tuple[int, int, int]] = {}  # the stamp of each file that was read or written
        self._names: dict[Path, str] = {}  # the schemas that were added
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / "probe"
        with atomic_write(probe):
            pass
        probe.unlink()

    def __contains__(self, name: str) -> bool:
        return self._file(name).exists()

    def read(self, engine: Engine) -> Iterator[str]:
        """Add each schema that is new or has changed since the last call to an engine, and remove each that has gone.

        Yields:
            What is wrong with files that cannot be read, or whose schemas cannot be added.

        Raises:
            OSError: The folder cannot be read.
        """
        with os.scandir(self._folder) as entries:
            found = {
                Path(each.path): _stamp(each.stat(follow_symlinks=False))
                for each in entries
                if each.name.endswith(".xml")
            }
        for path in self._read.keys() - found.keys():
            del self._read[path]
            name = self._names.pop(path, None)
            if name is not None and name in engine.schemas:
                engine.remove_schema(name)
        for path in sorted(each for each in found if found[each] != self._read.get(each)):
            self._read[path] = found[path]
            try:
                schema = parse_schema(read_document(path, SchemaError))
                if path != self._file(schema.name):
                    raise InvalidValue(f"the file of the schema '{schema.name}' is {self._file(schema.name).name}")
                engine.add_schema(schema)
                self._names[path] = schema.name
            except PromptCacheError as error:
                yield f"{path}: {error}"

    @contextmanager
    def writing(self, name: str, document: str) -> Iterator[None]:
        """Write the file of a schema. It replaces an earlier one when the context ends, and not after an error.

        Raises:
            OSError: The file cannot be written.
        """
        path = self._file(name)
        with atomic_write(path) as file:
            file.write(document.encode())
            file.flush()  # a full disk is an error before the schema is added
            yield
        self._read[path], self._names[path] = _stamp(path.stat()), name

    def remove(self, name: str) -> None:
        """Remove the file of a schema, if there is one."""
        path = self._file(name)
        path.unlink(missing_ok=True)
        self._read.pop(path, None)
        self._names.pop(path, None)

    def _file(self, name: str) -> Path:
        """Return the file of a schema. The digest tells names apart whose letters differ in case, or that are long."""
        return self._folder / f"{quote(name, safe='')[:_SHOWN_CHARACTERS]}-{sha256(name.encode()).hexdigest()[:16]}.xml"


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
