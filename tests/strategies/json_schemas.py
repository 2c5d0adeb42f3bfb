"""Random JSON schemas whose values are small."""

from typing import Any

from hypothesis import strategies as st

_NAMES = st.text("abxyz_é", min_size=1, max_size=4)
_PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text('ab"\\\n é', max_size=4))

_STRINGS = st.one_of(
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 4)),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 3),
        st.integers(0, 2),
    ),
    st.sampled_from(["^[a-c]{2}$", "^(x|yy)z?$", "^[0-9]{1,3}$"]).map(lambda each: {"type": "string", "pattern": each}),
    st.sampled_from(["ipv4", "uuid"]).map(lambda each: {"type": "string", "format": each}),
)
_NUMBERS = st.one_of(
    st.builds(
        lambda least, more: {"type": "integer", "minimum": least, "maximum": least + more},
        st.integers(-999, 999),
        st.integers(0, 99),
    ),
    st.builds(lambda most: {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": most}, st.integers(0, 1000)),
    st.just({"type": "number", "minimum": 0, "maximum": 1}),
)
_LEAVES = st.one_of(
    _STRINGS,
    _NUMBERS,
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]),
    st.lists(_PLAIN, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    _PLAIN.map(lambda value: {"const": value}),
)


@st.composite
def _objects(draw: st.DrawFn, schemas: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(_NAMES, schemas, max_size=3))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _arrays(schemas: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        schemas,
        st.integers(0, 2),
        st.integers(0, 2),
    )


def json_schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas whose values are a few tokens to a few dozen."""
    nested = st.recursive(
        _LEAVES,
        lambda inner: st.one_of(
            _objects(inner), _arrays(inner), st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
        ),
        max_leaves=5,
    )
    shared = st.builds(
        lambda inner, outer: {"$defs": {"one": inner}, **outer}, _LEAVES, _objects(st.just({"$ref": "#/$defs/one"}))
    )
    return st.one_of(nested, shared)
