"""A folder with the documents of the schemas that clients have added, so that they survive a restart.

A schema has one file, whose name is made from its name. The server writes these files, and reads them when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from promptcache.atomic import atomic_write
from promptcache.diagnostics import InvalidValue, PromptCacheError, SchemaError
from promptcache.language import Schema, parse_schema, read_document

_SHOWN_CHARACTERS = 100  # of a name, in the name of its file


class SchemaFolder:
    """The files of schemas in a folder. Only one thread may change them at a time."""

    def __init__(self, folder: Path) -> None:
        """Open a folder. It is made if it does not exist.

        Raises:
            OSError: It cannot be made, or no file can be written there.
        """
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / "probe"
        with atomic_write(probe):
            pass
        probe.unlink()

    def __contains__(self, name: str) -> bool:
        return self._file(name).exists()

    def load(self, add: Callable[[Schema], object]) -> Iterator[str]:
        """Call `add` with each schema. Yield what is wrong with those that cannot be read or added."""
        for path in sorted(self._folder.glob("*.xml")):
            try:
                schema = parse_schema(read_document(path, SchemaError))
                if path != self._file(schema.name):
                    raise InvalidValue(f"the file of the schema '{schema.name}' is {self._file(schema.name).name}")
                add(schema)
            except PromptCacheError as error:
                yield f"{path}: {error}"

    @contextmanager
    def writing(self, name: str, document: str) -> Iterator[None]:
        """Write the file of a schema. It replaces an earlier one when the context ends, and not after an error.

        Raises:
            OSError: The file cannot be written.
        """
        with atomic_write(self._file(name)) as file:
            file.write(document.encode())
            file.flush()  # a full disk is an error before the schema is added
            yield

    def remove(self, name: str) -> None:
        """Remove the file of a schema, if there is one.

        Raises:
            OSError: The file cannot be removed.
        """
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        """Return the file of a schema. The digest tells names apart whose letters differ in case, or that are long."""
        return self._folder / f"{quote(name, safe='')[:_SHOWN_CHARACTERS]}-{sha256(name.encode()).hexdigest()[:16]}.xml"
