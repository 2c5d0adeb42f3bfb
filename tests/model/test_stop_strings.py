"""Stop strings end a row where transformers ends it."""

from functools import cache
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, StopStringCriteria

from promptcache.model.options import StopStrings
from promptcache.tokenizer import HubTokenizer
from tests.tokenizer import small_tokenizers as small

METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
KINDS = {
    "byte_level": small.byte_level(),
    "llama_like": small.llama_like(),
    "unigram": small.unigram(),
    "without bytes": small.edited(small.unigram(), decoder=METASPACE),
}
TEXTS = (
    "the quick brown fox",
    " the other dog",
    "naïve ☃ 日本",
    "x\n\n\nclass A:",
    "<|im_end|></s>[SEP]<think>",
    "é",
    "�",
)


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(KINDS[kind]))


def knows_bytes() -> bool:
    """Whether transformers finds stop strings in tokens of single bytes: 5.4 does not."""
    try:
        StopStringCriteria(tokenizer_of("unigram"), ["é"])
    except ValueError:
        return False
    return True


@pytest.mark.skipif(not knows_bytes(), reason="this version of transformers stops elsewhere")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_row_stops_where_transformers_stops_it(kind: str, data: st.DataObject) -> None:
    """For texts and any tokens, those without an entry in the vocabulary included, every step has the same result."""
    tokenizer: Any = tokenizer_of(kind)
    of_texts = st.sampled_from(TEXTS).map(lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
    any_token = st.integers(0, len(tokenizer) + 2).map(lambda token_id: [token_id])
    row = [*chain.from_iterable(data.draw(st.lists(of_texts | any_token, min_size=1, max_size=8)))]
    text = tokenizer.convert_tokens_to_string([each for each in tokenizer.convert_ids_to_tokens(row) if each])
    of_row = st.builds(lambda start, size: text[start : start + size], st.integers(0, 20), st.integers(1, 6))
    any_string = of_row.filter(bool) | st.sampled_from(("e", "dog", "ïve", "☃ x"))
    strings = data.draw(st.lists(any_string, min_size=1, max_size=3))
    own = HubTokenizer.from_parts(KINDS[kind], {})
    expected, actual = StopStringCriteria(tokenizer, strings), StopStrings(strings, own.token_bytes)

    for stop in range(1, len(row) + 1):
        input_ids = torch.tensor([row[:stop], row[:stop][::-1]])
        assert actual(input_ids, None).tolist() == expected(input_ids, None).tolist()
