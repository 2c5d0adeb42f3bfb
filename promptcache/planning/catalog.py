"""The schemas that an engine serves: their layouts and encodings, found by name.

It also says to the store which schema and module an encoding is of. This file knows no prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from promptcache.diagnostics import (
    TEXT,
    EngineClosed,
    InvalidValue,
    PromptCacheError,
    UnknownSchema,
    did_you_mean,
    one_of,
    shown,
)
from promptcache.kv import Codec, Store
from promptcache.language import CheckedSchema, Member, Placement, Repair, Selection, declared_members
from promptcache.layout import (
    Encoding,
    Layout,
    Pair,
    Plan,
    RunState,
    check_length,
    lay_out,
    make_plan,
    member_encodings,
    pair_encodings,
    run_states,
)
from promptcache.locks import new_lock
from promptcache.model import Model
from promptcache.tokenizer import Conversations, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """A schema with its layout and the states of its runs.

    A request keeps the state that it was planned with. It is immutable but for `members`: the members of collections by
    name, by the path of the collection.
    """

    schema: CheckedSchema
    layout: Layout
    states: tuple[RunState, ...]
    codec: Codec
    members: Mapping[str, dict[str, Member]] = field(default_factory=dict)

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """All encodings in layout order, contexts first, each once."""
        return tuple(dict.fromkeys(state.encoding for state in self.states))

    @property
    def modules(self) -> Mapping[Encoding, str]:
        """The module path of each encoding; "" is the text outside modules."""
        return {state.encoding: state.module(self.layout) for state in self.states}

    def encodings_of(self, module: str | None) -> tuple[Encoding, ...]:
        """Return the encodings of a module and of the modules in it; None means all encodings.

        Raises:
            PromptCacheError: The schema has no such module.
        """
        if module is None:
            return self.encodings
        TEXT.check("module", module, InvalidValue)
        path = module.strip("/")
        if path not in self.schema.modules:
            help_text = did_you_mean(path, self.schema.modules) or "paths are written like city/hotel"
            raise PromptCacheError(f"schema '{self.schema.name}' has no module '{module}' ({help_text})")
        inside = (state for state in self.states if f"{state.module(self.layout)}/".startswith(f"{path}/"))
        return tuple(dict.fromkeys(state.encoding for state in inside))

    def member_encodings(self, tokenizer: Tokenizer) -> Iterator[tuple[str, Encoding]]:
        """Yield the path and the encoding of each member of its collections, as `layout.member_encodings`."""
        return member_encodings(self.schema, self.members, self.layout, self.states, tokenizer, self.codec)

    def pair_encodings(self, modules: Container[str] | None = None) -> Iterator[Pair]:
        """Yield the encodings of each module behind others, as `layout.pair_encodings`."""
        return pair_encodings(self.layout, self.states, modules)

    def plan(
        self,
        selection: Selection,
        tokenizer: Tokenizer,
        repair: Repair | None = None,
        answers: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
        conversations: Conversations | None = None,
    ) -> Plan:
        """Return the plan of one prompt; arguments and errors are those of `make_plan`."""
        return make_plan(selection, self.layout, self.states, tokenizer, repair, answers, conversations, self.codec)


def schema_state(
    schema: CheckedSchema,
    tokenizer: Tokenizer,
    context_length: int,
    codec: Codec = Codec.FULL,
    placement: Placement = Placement.CLOSED,
) -> SchemaState:
    """Lay out a schema and create its encodings.

    Args:
        context_length: Number of positions of the model.
        codec: The codec of its stored KV.
        placement: Where requests have cached text, if the schema does not say.

    Raises:
        SchemaError: A filler is longer than its slot, or the schema needs more positions than the model has.
    """
    layout = lay_out(schema, tokenizer, placement=placement, max_positions=context_length)
    states = run_states(layout, codec)
    check_length(layout, states, context_length)
    return SchemaState(schema=schema, layout=layout, states=states, codec=codec, members=declared_members(schema))


def choose_placement(model: Model, asked: str | None = None) -> Placement:
    """Return where requests of a model have cached text, if a schema does not say.

    Args:
        asked: "closed" or "fixed"; None means closed, or fixed if the keys of the model cannot be moved.

    Raises:
        InvalidValue: It is neither.
        UnsupportedModel: It is "closed", and the keys of the model cannot be moved; gives the reason.
    """
    (one_of(Placement) | None).check("positions", asked, InvalidValue)
    if asked is None:
        return Placement.CLOSED if model.can_relocate else Placement.FIXED
    if asked == Placement.CLOSED:
        _ = model.relocation
    return Placement(asked)


class Catalog:
    """Schema states by name. All methods are thread-safe."""

    def __init__(self, store: Store | None, key: Callable[[Encoding], str] = lambda each: each.digest) -> None:
        """Create an empty catalog.

        Args:
            store: The store of their KV; None if another process has it.
            key: Returns the store key of an encoding.
        """
        self._store = store
        self._key = key
        self._states: dict[str, SchemaState] = {}
        self._is_closed = False
        self._lock = new_lock()

    @property
    def states(self) -> tuple[SchemaState, ...]:
        """All schemas, in the order in which their names were added."""
        return tuple(self._states.values())

    def add(self, state: SchemaState) -> None:
        """Add a schema. A schema of the same name is replaced; requests in flight keep the old one.

        Raises:
            EngineClosed: The catalog was closed.
        """
        with self._lock:
            self.check_open()
            name = state.schema.name
            self._states[name] = state
        self.describe(state.schema.name, state.modules)

    def remove(self, name: str) -> None:
        """Remove a schema; requests in flight keep it.

        Raises:
            UnknownSchema: With the nearest name, or all of them.
        """
        with self._lock:
            self.find(name)
            del self._states[name]

    def close(self) -> None:
        """Remove all schemas, and take no others. Requests in flight keep theirs."""
        with self._lock:
            self._is_closed = True
            self._states.clear()

    def check_open(self) -> None:
        """Raise `EngineClosed` after `close`."""
        if self._is_closed:
            raise EngineClosed("this engine is closed: make another one, Engine(engine.model, engine.tokenizer)")

    def serves(self, state: SchemaState) -> bool:
        """Return whether new requests may use a state: its schema was not replaced or removed."""
        return self._states.get(state.schema.name) is state

    def set_member(self, schema: str, collection: str, name: str, member: Member | None) -> None:
        """Add a member to a collection, replace it, or remove it with None. Requests in flight keep the old one.

        Raises:
            UnknownSchema: There is no such schema.
            InvalidValue: It has no such collection, or there is no such member to remove.
        """
        TEXT.check("name", name, InvalidValue)
        with self._lock:
            state = self.find(schema)
            members = _members(state, collection)
            if member is None and name not in members:
                raise InvalidValue(f"collection '{collection}' of schema '{schema}' has no member {shown(name)}")
            if member is not None and name not in members:
                members[name] = member
            elif member != members[name]:
                if member is None:
                    del members[name]
                else:
                    members[name] = member
                self._states[schema] = replace(state)  # plans of this state are not used again

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
        if self._store is not None:
            self._store.note({self._key(each): self._facts(schema, path) for each, path in modules.items()})

    def _facts(self, schema: str, path: str) -> dict[str, str]:
        state = self.get(schema)
        module = None if state is None else state.schema.modules.get(path)
        priority = None if module is None else module.node.priority
        return {"schema": schema, "module": path, **({} if priority is None else {"priority": str(priority)})}

    def get(self, name: str) -> SchemaState | None:
        """Return the schema of this name, or None."""
        return self._states.get(name)

    def find(self, name: str) -> SchemaState:
        """Return the schema of this name.

        Raises:
            EngineClosed: The catalog was closed.
            UnknownSchema: With the nearest name, or all of them.
        """
        self.check_open()
        TEXT.check("schema", name, InvalidValue)
        state = self.get(name)
        if state is None:
            known = ", ".join(self._states) or "none"
            help_text = did_you_mean(name, self._states) or f"schemas known here: {known}"
            raise UnknownSchema(f"schema '{name}' was not added to this engine ({help_text})")
        return state


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


def _members(state: SchemaState, collection: str) -> dict[str, Member]:
    TEXT.check("collection", collection, InvalidValue)
    members = state.members.get(collection.strip("/"))
    if members is None:
        known = did_you_mean(collection, state.members) or f"collections: {', '.join(state.members) or 'none'}"
        raise InvalidValue(f"schema '{state.schema.name}' has no collection {shown(collection)} ({known})")
    return members
