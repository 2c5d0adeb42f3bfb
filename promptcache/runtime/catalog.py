"""The schemas that an engine serves: added, replaced as a whole, removed, and found by name.

Comes in: states of schemas. Goes out: the one that a prompt names. The store hears which encodings will be needed, and
which no schema has any more. This file knows no prompt.
"""

from __future__ import annotations

from collections.abc import Callable

from promptcache.diagnostics import TEXT, InvalidValue, UnknownSchema, did_you_mean
from promptcache.kv import Store
from promptcache.layout import Encoding
from promptcache.locks import new_lock
from promptcache.runtime.schema_state import SchemaState


class Catalog:
    """States of schemas by name. Any thread may call any method."""

    def __init__(self, store: Store, key: Callable[[Encoding], str], *, owns_store: bool = False) -> None:
        """Start with no schemas.

        Args:
            store: Has the KV of their encodings.
            key: Returns the store's key of an encoding.
            owns_store: Whether its memory is used here only: encodings that no schema has any more are freed then.
        """
        self._store = store
        self._key = key
        self._owns_store = owns_store
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
        if self._owns_store:
            used = {each for state in self._states.values() for each in state.encodings}
            self._store.forget({self._key(each) for each in old.encodings if each not in used})

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
