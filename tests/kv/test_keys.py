"""Keys name everything that KV depends on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptcache.kv import encoding_key

INPUTS = st.tuples(
    st.text(max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3),
    st.lists(st.sampled_from(["k1", "k2"]), max_size=2),
)


@given(one=INPUTS, other=INPUTS)
def test_keys_are_equal_when_everything_is(one: tuple, other: tuple) -> None:
    """Two encodings share a key exactly when model, tokens, positions and context are the same."""
    keys = [
        encoding_key(fingerprint, [token for token, _ in tokens], [position for _, position in tokens], context)
        for fingerprint, tokens, context in (one, other)
    ]

    assert (keys[0] == keys[1]) == (one == other)


def test_a_key_changes_with_what_its_context_has_seen() -> None:
    """Keys form a Merkle tree: another word deep in the context is another key at the top."""
    one, other = (encoding_key("model", [word], [0], []) for word in (1, 2))

    assert encoding_key("model", [3], [1], [one]) != encoding_key("model", [3], [1], [other])
