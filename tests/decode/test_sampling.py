"""Sampling does not depend on the order of equal scores, on rounding, or on the other rows of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from promptcache.decode.sampling import SampledRow, sample
from promptcache.engine import Engine
from promptcache.options import Options
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.conftest import law_examples
from tests.decode.test_service import ask

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
        rows = [SampledRow(options=rule, generator=each, seen=torch.tensor([]), num_new=0) for each in generators]
        return [sample(logits, rows[: len(logits)])[0] for _ in range(_NUM_DRAWS)]

    assert drawn(row[None]) == drawn(torch.cat([rounded[None], others]))


def tied_model() -> LlamaForCausalLM:
    """A model whose vocabulary has six tokens with equal logits each, as padding rows of a vocabulary have."""
    torch.manual_seed(0)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=6144,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=None,
            tie_word_embeddings=False,
        )
    ).double()
    with torch.no_grad():
        made.lm_head.weight.mul_(60)
        made.lm_head.weight[1024:] = made.lm_head.weight[:1024].repeat(5, 1)
    return made


class _Tokens(ByteTokenizer):
    """Has a text for tokens beyond those of bytes."""

    def detokenize(self, token_ids: Any) -> str:
        return super().detokenize([each % 256 for each in token_ids])


@pytest.mark.parametrize("options", [{"top_p": 0.8, "temperature": 3.3}, {"top_p": 0.6, "temperature": 5.0}])
def test_a_seeded_answer_over_equal_logits_is_the_same_in_company(options: dict[str, Any]) -> None:
    """Answers of a model with equal logits are the same alone and together."""
    engine = Engine(tied_model(), _Tokens())
    texts: list[Any] = [[{"role": "user", "content": each}] for each in "abcdefghijkl"]
    options = {"max_new_tokens": 6, "eos_token_id": [], "do_sample": True, "top_k": 0, "seed": 7, **options}
    service = engine.service()
    try:
        alone = [ask(service, each, reuse=False, **options)[0].result(60).token_ids for each in texts]
        asked = [ask(service, each, reuse=False, **options)[0] for each in texts]
        together = [each.result(60).token_ids for each in asked]
    finally:
        service.close()

    assert together == alone
