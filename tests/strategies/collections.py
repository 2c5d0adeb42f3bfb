"""Strategies for schemas with collections: random schemas, with collections at random places."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from promptcache.language import (
    Assert,
    CheckedSchema,
    Choose,
    Collection,
    Context,
    Example,
    Exclude,
    Item,
    Module,
    Require,
    RuleList,
    Text,
    Turn,
    check_schema,
)
from promptcache.language.syntax.nodes import IN_PYTHON
from promptcache.testing.texts import texts
from tests.strategies import schemas

_NAMES = ("m", "n.md", "été", "last-1", "a", "b")
_TEXTS = st.lists(texts(12).filter(bool), min_size=2, max_size=len(_NAMES))


@st.composite
def collection_schemas(draw: DrawFn) -> CheckedSchema:
    """Draw a checked schema with one or two collections, at the top level or in turns."""
    source = replace(draw(schemas(includes=False)).source, positions=None)
    children = [child for child in source.children if not isinstance(child, Example)]
    for number in range(draw(st.integers(1, 2))):
        collection, *rules = _collection(draw, f"collection{number}")
        index = draw(st.integers(0, len(children)))
        inside = children[index] if index < len(children) else None
        if isinstance(inside, Turn) and draw(st.booleans()):
            children[index] = replace(inside, children=(*inside.children, collection))
        else:
            children.insert(index, collection)
        children += rules
    return check_schema(replace(source, children=tuple(children)))


def _collection(draw: DrawFn, name: str) -> list[Item]:
    """Draw a collection, and perhaps a rule over its first two members that some selection of members keeps."""
    minimum, room = draw(st.sampled_from((0, 0, 1, 2))), draw(st.none() | st.integers(0, 3))
    members = [
        Module(name=member, children=(Text(text=text, span=IN_PYTHON, exact=True),), span=IN_PYTHON)
        for member, text in zip(_NAMES, draw(_TEXTS), strict=False)
    ]
    collection = Collection(
        name=name,
        children=tuple(members),
        span=IN_PYTHON,
        minimum=minimum,
        maximum=None if room is None else max(1, minimum + room),
        context=draw(st.sampled_from(Context)),
        separator=draw(st.sampled_from((None, "", "\n", "; "))),
    )
    if minimum > 1 or len(members) < 3 or draw(st.booleans()):
        return [collection]
    one, other = (f"{name}/{member}" for member in _NAMES[:2])
    rules = (
        Exclude(modules=(one, other), span=IN_PYTHON),
        Require(condition=one, consequence=other, span=IN_PYTHON),
        Choose(modules=(one, other), maximum=1, span=IN_PYTHON),
        Assert(test=f"{other} implies {name} and {one}", span=IN_PYTHON),
    )
    return [collection, RuleList(children=(draw(st.sampled_from(rules)),), span=IN_PYTHON)]
