"""The schemas that an engine serves: added, replaced as a whole, removed, and found by name.

Comes in: states of schemas. Goes out: the one that a prompt names. The store hears which encodings will be needed, and
which no schema has any more. This file knows no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from promptcache.diagnostics import TEXT, InvalidValue, UnknownSchema, did_you_mean
from promptcache.kv import MemoryStore, SharedStore, Store
from promptcache.layout import Encoding
from promptcache.locks import new_lock
from promptcache.runtime.schema_state import SchemaState


class Catalog:
    """States of schemas by name. Any thread may call any method."""

    def __init__(self, store: Store, key: Callable[[Encoding], str], own: Sequence[MemoryStore] = ()) -> None:
        """Start with no schemas.

        Args:
            store: Has the KV of their encodings.
            key: Returns the store's key of an encoding.
            own: Memory tiers of the store that only this catalog uses: encodings that no schema has any more are
                deleted there. They are never deleted from a folder: others may share it, and an earlier version of the
                schema may come back.
        """
        self._store = store
        self._key = key
        self._own = own
        self._states: dict[str, SchemaState] = {}
        self._lock = new_lock()

    @property
    def states(self) -> tuple[SchemaState, ...]:
        """All schemas, in the order in which their names were first added."""
        return tuple(self._states.values())

    def add(self, state: SchemaState) -> None:
        """Add a schema; one of the same name is replaced at once, and requests that began with it keep it."""
        key, store = self._key, self._store
        with self._lock:
            old = self._states.get(state.schema.name)
            self._states[state.schema.name] = state
            store.reserve([(key(each), each.num_tokens) for each in state.encodings])
            if isinstance(store, SharedStore):
                name = state.schema.name
                store.note({key(each): {"schema": name, "module": path} for each, path in state.modules.items()})
            if old is not None:
                self._forget(old)

    def remove(self, name: str) -> None:
        """Remove a schema; requests that began with it keep it.

        Raises:
            UnknownSchema: With the nearest name, or all of them.
        """
        with self._lock:
            old = self.find(name)
            del self._states[name]
            self._forget(old)

    def _forget(self, old: SchemaState) -> None:
        if not self._own:
            return
        used = {each for state in self._states.values() for each in state.encodings}
        unused = {self._key(each) for each in old.encodings if each not in used}
        for memory in self._own:
            for key in unused:
                memory.delete(key)
        if isinstance(self._store, SharedStore):
            self._store.forget(unused)

    def get(self, name: str) -> SchemaState | None:
        """Return the schema of this name, or None."""
        return self._states.get(name)

    def find(self, name: str) -> SchemaState:
        """Return the schema of this name.

        Raises:
            UnknownSchema: With the nearest name, or all of them.
        """
        TEXT.check("schema", name, InvalidValue)
        state = self.get(name)
        if state is None:
            known = ", ".join(self._states) or "none"
            help_text = did_you_mean(name, self._states) or f"schemas known here: {known}"
            raise UnknownSchema(f"schema '{name}' was not added to this engine ({help_text})")
        return state
