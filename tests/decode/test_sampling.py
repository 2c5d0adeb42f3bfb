"""Sampling does not depend on the order of equal scores, on rounding, or on the other rows of a batch."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.decode.sampling import sample
from promptcache.options import Options
from tests.conftest import law_examples

_NUM_DRAWS = 8

SETTINGS = st.builds(
    Options,
    do_sample=st.just(True),
    temperature=st.sampled_from((0.3, 1.0, 2.5)),
    top_k=st.sampled_from((0, 1, 3, 50)),
    top_p=st.sampled_from((0.0, 0.3, 0.8, 0.95, 1.0)),
    min_p=st.sampled_from((0.0, 0.0, 0.1, 0.9)),
)


@pytest.mark.law
@settings(max_examples=law_examples(0.5), deadline=None)
@given(
    seed=st.integers(0, 2**20),
    size=st.sampled_from((8, 200, 3000)),
    num_levels=st.sampled_from((1, 4, 30)),
    rule=SETTINGS,
    num_others=st.integers(0, 4),
)
def test_equal_scores_and_rounding_do_not_choose_the_token(
    seed: int, size: int, num_levels: int, rule: Options, num_others: int
) -> None:
    """A row with many equal logits gets the same tokens beside other rows, and if its logits are rounded otherwise."""
    noise = torch.Generator().manual_seed(seed)
    row = torch.randint(num_levels, (size,), generator=noise).double() / 2 + 1
    others = 3 * torch.randn((num_others, size), generator=noise, dtype=torch.float64)
    rounded = row * (1 + 2.0**-23 * torch.randn(size, generator=noise, dtype=torch.float64))

    def drawn(logits: torch.Tensor) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        generators = [generator, *(torch.Generator().manual_seed(each) for each in range(num_others))]
        rows: list[Any] = [SimpleNamespace(sampling=rule, generator=each, token_ids=[]) for each in generators]
        return [sample(logits, rows[: len(logits)])[0] for _ in range(_NUM_DRAWS)]

    assert drawn(row[None]) == drawn(torch.cat([rounded[None], others]))
