"""The schemas that an engine serves: added, replaced as a whole, and found by name.

Comes in: prepared schemas. Goes out: the one that a prompt names. A store is told what will be needed, and which
encodings no schema has any more. This file knows no prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcache.diagnostics import TEXT, InvalidValue, UnknownSchema, did_you_mean
from promptcache.kv import MemoryStore, SharedStore, Store
from promptcache.locks import new_lock
from promptcache.runtime.prepare import Prepared


class Catalog:
    """Prepared schemas by name. Any thread may call any method."""

    def __init__(self, store: Store, own: Sequence[MemoryStore] = ()) -> None:
        """Start with no schemas.

        Args:
            store: Where their encodings rest.
            own: What of it nobody else uses: encodings that no schema has any more are deleted from there, and never
                from a folder that others share, or that an earlier version of the schema may come back to.
        """
        self._store = store
        self._own = own
        self._prepared: dict[str, Prepared] = {}
        self._lock = new_lock()

    @property
    def prepared(self) -> tuple[Prepared, ...]:
        """All schemas, in the order in which their names were first added."""
        return tuple(self._prepared.values())

    def add(self, prepared: Prepared) -> None:
        """Add a schema; one of the same name is replaced at once, and who holds the old one keeps it."""
        with self._lock:
            old = self._prepared.get(prepared.schema.name)
            self._prepared[prepared.schema.name] = prepared
            self._store.reserve(prepared.sizes)
            if isinstance(self._store, SharedStore):
                self._store.note(prepared.notes)
            if old is not None and self._own:
                self._forget(set(old.keys))

    def _forget(self, keys: set[str]) -> None:
        unused = keys - {key for each in self._prepared.values() for key in each.keys}
        for memory in self._own:
            for key in unused:
                memory.delete(key)
        if isinstance(self._store, SharedStore):
            self._store.forget(unused)

    def get(self, name: str) -> Prepared | None:
        """Return the schema of this name, or None."""
        return self._prepared.get(name)

    def find(self, name: str) -> Prepared:
        """Return the schema of this name.

        Raises:
            UnknownSchema: With the nearest name, or all of them.
        """
        TEXT.check("schema", name, InvalidValue)
        prepared = self.get(name)
        if prepared is None:
            known = ", ".join(self._prepared) or "none"
            mend = did_you_mean(name, self._prepared) or f"schemas known here: {known}"
            raise UnknownSchema(f"schema '{name}' was not added to this engine ({mend})")
        return prepared
