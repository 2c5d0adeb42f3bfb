"""A key names an encoding under one model; `tests/layout/test_encoding.py` holds that digests tell encodings apart."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from promptcache.kv import Codec, Recipe, store_key

FINGERPRINTS = st.text(alphabet="ab0\nä", max_size=3)
DIGESTS = st.text(alphabet="0a", min_size=2, max_size=2).map(lambda end: end.rjust(64, "f"))


@given(one=st.tuples(FINGERPRINTS, DIGESTS), other=st.tuples(FINGERPRINTS, DIGESTS))
def test_keys_are_equal_when_model_and_digest_are(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Two encodings share a key exactly when the fingerprint of the model and the digest are the same."""
    assert (store_key(*one) == store_key(*other)) == (one == other)


@given(
    fingerprint=FINGERPRINTS,
    digest=DIGESTS,
    num_tokens=st.integers(1, 5),
    first=st.integers(0, 5),
    codec=st.sampled_from(Codec),
)
def test_a_recipe_is_named_by_model_and_digest(
    fingerprint: str, digest: str, num_tokens: int, first: int, codec: Codec
) -> None:
    """A recipe has the key of its model and digest; what else it says enters the digest, and not the key again."""
    recipe = Recipe(
        fingerprint=fingerprint,
        digest=digest,
        num_tokens=num_tokens,
        first_position=first,
        last_position=first + num_tokens - 1,
        codec=codec,
    )

    assert recipe.key == store_key(fingerprint, digest)
    assert replace(recipe, fingerprint=f"{fingerprint}!").key != recipe.key
    assert len(recipe.key) == 64
