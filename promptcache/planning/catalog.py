"""The schemas that an engine serves, found by name.

It also says to the store which schema and module an encoding is of. This file knows no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from promptcache.diagnostics import TEXT, EngineClosed, InvalidValue, UnknownSchema, did_you_mean, shown
from promptcache.kv import Store
from promptcache.language import Member
from promptcache.layout import Encoding, Plan
from promptcache.locks import new_lock
from promptcache.planning.served_schema import ServedSchema


class Catalog:
    """Served schemas by name. All methods are thread-safe."""

    def __init__(
        self, store: Store | None, key: Callable[[Encoding], str] = lambda each: each.digest, model: str = ""
    ) -> None:
        """Create an empty catalog.

        Args:
            store: The store of their KV; None if another process has it.
            key: Returns the store key of an encoding.
            model: The name of the model, for people who look into the store.
        """
        self._store, self._model = store, model
        self._key = key
        self._schemas: dict[str, ServedSchema] = {}
        self._is_closed = False
        self._lock = new_lock()

    @property
    def schemas(self) -> tuple[ServedSchema, ...]:
        """All schemas, in the order in which their names were added."""
        return tuple(self._schemas.values())

    def add(self, served: ServedSchema) -> None:
        """Add a schema. A schema of the same name is replaced; requests in flight keep the old one.

        Raises:
            EngineClosed: The catalog was closed.
        """
        with self._lock:
            self.check_open()
            self._schemas[served.schema.name] = served
        self.describe(served.schema.name, served.modules)

    def remove(self, name: str) -> None:
        """Remove a schema; requests in flight keep it.

        Raises:
            UnknownSchema: With the nearest name, or all of them.
        """
        with self._lock:
            self.find(name)
            del self._schemas[name]

    def close(self) -> None:
        """Remove all schemas, and take no others. Requests in flight keep theirs."""
        with self._lock:
            self._is_closed = True
            self._schemas.clear()

    def check_open(self) -> None:
        """Raise `EngineClosed` after `close`."""
        if self._is_closed:
            raise EngineClosed("this engine is closed: make another one, Engine(engine.model, engine.tokenizer)")

    def serves(self, served: ServedSchema) -> bool:
        """Return whether new requests may use a schema: it was not replaced or removed."""
        return self._schemas.get(served.schema.name) is served

    def set_member(self, schema: str, collection: str, name: str, member: Member | None) -> None:
        """Add a member to a collection, replace it, or remove it with None. Requests in flight keep the old one.

        Raises:
            UnknownSchema: There is no such schema.
            InvalidValue: It has no such collection, or there is no such member to remove.
        """
        TEXT.check("name", name, InvalidValue)
        with self._lock:
            served = self.find(schema)
            members = _members(served, collection)
            if member is None and name not in members:
                raise InvalidValue(f"collection '{collection}' of schema '{schema}' has no member {shown(name)}")
            old = members.pop(name, None) if member is None else members.get(name)
            if member is not None:
                members[name] = member
            if old not in (None, member):
                self._schemas[schema] = replace(served)  # plans of the old one are not used again

    def members(self, schema: str, collection: str) -> Mapping[str, str]:
        """Return the texts of the members of a collection, by name; errors as for `set_member`."""
        return _Texts(_members(self.find(schema), collection))

    def describe_plan(self, plan: Plan) -> None:
        """Tell the store the schema and the modules of the encodings of a plan."""
        runs = (piece.run for piece in plan.pieces if piece.run is not None)
        paths = {run.token_ids: run.module for run in runs if run.module in plan.selection.members}
        modules = {piece.source.encoding: piece.module for piece in plan.pieces if piece.source is not None}
        contexts = {part.encoding for encoding in modules for part in encoding.context} if paths else ()
        members = {each: paths[each.token_ids] for each in contexts if each.token_ids in paths}
        self.describe(plan.layout.schema.name, {**members, **modules})

    def describe(self, schema: str, modules: Mapping[Encoding, str]) -> None:
        """Tell the store the schema and the module path of encodings."""
        if self._store is None:
            return
        served = self._schemas.get(schema)
        declared = {} if served is None else served.schema.modules
        notes: dict[str, dict[str, str]] = {}
        for encoding, path in modules.items():
            note = notes[self._key(encoding)] = {"schema": schema, "module": path, "model": self._model}
            if path in declared and (priority := declared[path].node.priority) is not None:
                note["priority"] = str(priority)
        self._store.note(notes)

    def find(self, name: str) -> ServedSchema:
        """Return the schema of this name.

        Raises:
            EngineClosed: The catalog was closed.
            UnknownSchema: With the nearest name, or all of them.
        """
        self.check_open()
        TEXT.check("schema", name, InvalidValue)
        served = self._schemas.get(name)
        if served is None:
            known = ", ".join(self._schemas) or "none"
            help_text = did_you_mean(name, self._schemas) or f"schemas known here: {known}"
            raise UnknownSchema(f"schema '{name}' was not added to this engine ({help_text})")
        return served


class _Texts(Mapping[str, str]):
    """The texts of the members of a collection, by name. Iterating goes over the names that there are at its start."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members

    def __getitem__(self, name: str) -> str:
        return self._members[name].text

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"<texts of {len(self)} members>"


def _members(served: ServedSchema, collection: str) -> dict[str, Member]:
    TEXT.check("collection", collection, InvalidValue)
    members = served.members.get(collection.strip("/"))
    if members is None:
        known = did_you_mean(collection, served.members) or f"collections: {', '.join(served.members) or 'none'}"
        raise InvalidValue(f"schema '{served.schema.name}' has no collection {shown(collection)} ({known})")
    return members
