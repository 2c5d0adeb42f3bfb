"""Laws of the initial weights."""

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from promptcache.demo import MODEL_FOLDER
from tools.demo.architecture import make_config, make_model
from tools.demo.tokenizer import BEGIN, twins

TOKENIZER = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
TWINS = twins(TOKENIZER)


@pytest.fixture
def model() -> LlamaForCausalLM:
    """The shipped shape, untrained."""
    model = make_model(make_config(TOKENIZER), TWINS, seed=0)
    model.set_attn_implementation("eager")  # it can show its attention
    return model


def tokens(*texts: str) -> list[int]:
    """Return the IDs of texts tokenized separately, after the beginning token."""
    ids = [TOKENIZER.encode(text, add_special_tokens=False).ids for text in texts]
    return [TOKENIZER.token_to_id(BEGIN), *(token_id for each in ids for token_id in each)]


def attention(model: LlamaForCausalLM, token_ids: list[int], layer: int, head: int) -> torch.Tensor:
    """Return the attention weights `[T]` of the last token in one head."""
    with torch.no_grad():
        output = model(torch.tensor([token_ids]), output_attentions=True)
    found: torch.Tensor = output.attentions[layer][0, head, -1]
    return found


def test_twins_start_as_neighbours(model: LlamaForCausalLM) -> None:
    """All pairs of twins differ by the same vector."""
    bare, spaced = torch.tensor(TWINS).T
    differences = model.model.embed_tokens.weight[spaced] - model.model.embed_tokens.weight[bare]

    assert torch.allclose(differences, differences[:1].expand_as(differences), atol=1e-4)


@pytest.mark.parametrize("head", range(8))
def test_first_layer_looks_back(model: LlamaForCausalLM, head: int) -> None:
    """Head i of the first layer attends to the token i + 1 back."""
    weights = attention(model, tokens("The airport of Miami is Palm Field. The best dish of Miami is"), 0, head)

    assert int(weights.argmax()) == len(weights) - 2 - head


def test_untrained_model_copies(model: LlamaForCausalLM) -> None:
    """An untrained model continues a repeated fact as before."""
    known = tokens("The airport of Oslo is green. The airport of Rome is yellow. The airport of Rome is")
    with torch.no_grad():
        best = int(model(torch.tensor([known])).logits[0, -1].argmax())

    assert TOKENIZER.decode([best]) == " yellow"
