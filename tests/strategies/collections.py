"""Strategies for schemas with collections: random schemas, with collections at random places."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.language import (
    IN_PYTHON,
    Assert,
    CheckedSchema,
    Choose,
    Collection,
    Combination,
    Context,
    Example,
    Exclude,
    Item,
    Module,
    Require,
    RuleList,
    Schema,
    Text,
    Turn,
    check_schema,
)
from promptcache.testing.texts import texts
from tests.strategies import schemas

_NAMES = ("m", "n.md", "été", "last-1", "a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionDraft:
    """A collection, and where it stands: behind `place` items, counted round, in a turn if there is one there."""

    place: int
    in_turn: bool
    minimum: int
    room: int | None
    context: Context
    separator: str | None
    texts: tuple[str, ...]
    rule: int | None

    def rules(self, name: str) -> tuple[Combination, ...]:
        """Return a rule over the first two members, which some selection of members keeps."""
        if self.rule is None or self.minimum > 1 or len(self.texts) < 3:
            return ()
        first, second = (f"{name}/{member}" for member in _NAMES[:2])
        return (
            Exclude(modules=(first, second), span=IN_PYTHON),
            Require(condition=first, consequence=second, span=IN_PYTHON),
            Choose(modules=(first, second), maximum=1, span=IN_PYTHON),
            Assert(test=f"{second} implies {name} and {first}", span=IN_PYTHON),
        )[self.rule : self.rule + 1]


def collection_schemas() -> SearchStrategy[CheckedSchema]:
    """Draw a checked schema with one or two collections."""
    return st.builds(_with_collections, schemas(includes=False), st.lists(_drafts(), min_size=1, max_size=2))


def _drafts() -> SearchStrategy[CollectionDraft]:
    return st.builds(
        CollectionDraft,
        place=st.integers(0, 9),
        in_turn=st.booleans(),
        minimum=st.sampled_from((0, 0, 1, 2)),
        room=st.none() | st.integers(0, 3),
        context=st.sampled_from(Context),
        separator=st.sampled_from((None, "", "\n", "; ")),
        rule=st.none() | st.integers(0, 3),
        texts=st.lists(texts(12).filter(bool), min_size=2, max_size=len(_NAMES)).map(tuple),
    )


def _with_collections(schema: CheckedSchema, drafts: list[CollectionDraft]) -> CheckedSchema:
    source = replace(schema.source, positions=None)
    children = [child for child in source.children if not isinstance(child, Example)]
    for number, draft in enumerate(drafts):
        index = draft.place % (len(children) + 1)
        inside = children[index] if draft.in_turn and index < len(children) else None
        collection = _collection(f"collection{number}", draft)
        if isinstance(inside, Turn):
            children[index] = replace(inside, children=(*inside.children, collection))
        else:
            children.insert(index, collection)
        if rules := draft.rules(f"collection{number}"):
            children.append(RuleList(children=rules, span=IN_PYTHON))
    return check_schema(Schema.of(replace(source, children=tuple(children))))


def _collection(name: str, draft: CollectionDraft) -> Item:
    members = tuple(
        Module(name=each, children=(Text(text=text, span=IN_PYTHON, exact=True),), span=IN_PYTHON)
        for each, text in zip(_NAMES, draft.texts, strict=False)
    )
    return Collection(
        name=name,
        children=members,
        span=IN_PYTHON,
        minimum=draft.minimum,
        maximum=None if draft.room is None else max(1, draft.minimum + draft.room),
        context=draft.context,
        separator=draft.separator,
    )
