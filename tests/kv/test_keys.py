"""Keys name everything that KV depends on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptcache.kv import Codec, Recipe, context_digest

INPUTS = st.tuples(
    st.text(max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3),
    st.lists(st.sampled_from(["k1", "k2"]), max_size=2),
    st.sampled_from(Codec),
)


def recipe(fingerprint: str, tokens: list[tuple[int, int]], context: list[str], codec: Codec = Codec.FULL) -> Recipe:
    """A recipe of tokens with their positions, and of the keys of a context."""
    return Recipe(
        fingerprint=fingerprint,
        token_ids=tuple(token for token, _ in tokens),
        position_ids=tuple(position for _, position in tokens),
        context=context_digest(context),
        codec=codec,
    )


@given(one=INPUTS, other=INPUTS)
def test_keys_are_equal_when_everything_is(one: tuple, other: tuple) -> None:
    """Two encodings share a key exactly when model, tokens, positions, context and codec are the same."""
    assert (recipe(*one).key == recipe(*other).key) == (one == other)


def test_a_key_changes_with_what_its_context_has_seen() -> None:
    """Keys form a Merkle tree: another word deep in the context is another key at the top."""
    one, other = (recipe("model", [(word, 0)], []).key for word in (1, 2))

    assert recipe("model", [(3, 1)], [one]).key != recipe("model", [(3, 1)], [other]).key
