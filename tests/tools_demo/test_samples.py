"""Laws of the layout of documents as samples."""

from itertools import pairwise
from random import Random

import pytest
from tokenizers import Tokenizer

from promptcache.demo import MODEL_FOLDER
from tools.demo.documents import DocumentSettings, NameSource, make_document
from tools.demo.samples import MAX_POSITIONS, LayoutSettings, Sample, lay_out
from tools.demo.tokenizer import BEGIN, END

TOKENIZER = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))


def draw(num_facts: int, count: int = 40) -> list[Sample]:
    rng = Random(num_facts)
    settings = DocumentSettings(num_facts=num_facts, max_questions=12, unknown_share=0.3)
    return [lay_out(make_document(rng, NameSource(), settings), TOKENIZER, rng, LayoutSettings()) for _ in range(count)]


@pytest.mark.parametrize("num_facts", [1, 6, 24])
def test_positions_rise_and_fit(num_facts: int) -> None:
    """Position IDs start at 0, increase and stay below the model's limit; some samples have gaps."""
    samples = draw(num_facts)

    for sample in samples:
        positions = sample.position_ids
        assert positions[0] == 0
        assert positions[-1] < MAX_POSITIONS
        assert all(a < b for a, b in pairwise(positions))
    assert any(sample.position_ids[-1] >= len(sample.token_ids) for sample in samples)


def test_samples_begin_once_and_answers_end() -> None:
    """`<|begin|>` is at position 0 only, and each answer ends with `<|end|>`."""
    begin, end = TOKENIZER.token_to_id(BEGIN), TOKENIZER.token_to_id(END)
    for sample in draw(6):
        assert [i for i, token in enumerate(sample.token_ids) if token == begin] == [0]
        assert all(sample.token_ids[answer.stop - 1] == end for answer in sample.answers)


def test_only_answers_are_learned() -> None:
    """Exactly the tokens of answers have a weight."""
    for sample in draw(6):
        learned = {i for answer in sample.answers for i in range(answer.start, answer.stop)}
        weighted = {i for i, weight in enumerate(sample.weights) if weight}
        assert learned <= weighted <= learned | {answer.stop for answer in sample.answers}
