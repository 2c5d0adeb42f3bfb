"""Keys of recipes. `tests/layout/test_encoding.py` checks the digests of encodings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptcache.kv import Codec, Recipe

RECIPES = st.builds(
    Recipe,
    fingerprint=st.text(alphabet="ab0\nä", max_size=3),
    digest=st.text(alphabet="0a", min_size=2, max_size=2).map(lambda end: end.rjust(64, "f")),
    num_tokens=st.integers(1, 3),
    first_position=st.integers(0, 2),
    last_position=st.integers(10, 12),
    codec=st.sampled_from(Codec),
)


@given(one=RECIPES, other=RECIPES)
def test_keys_are_equal_if_recipes_are(one: Recipe, other: Recipe) -> None:
    """Two recipes have the same key exactly if all of their fields are equal."""
    assert (one.key == other.key) == (one == other)
    assert len(one.key) == 64
