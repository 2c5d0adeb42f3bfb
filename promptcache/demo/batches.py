"""Turns samples into tensors and scores a forward pass on them.

Comes in: samples, a model. Goes out: padded batches, a loss, counts of whole answers right. An answer is right when
every one of its tokens is the most probable one after the right tokens before it, which is the same as greedy decoding
of the whole answer being right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from promptcache.demo.documents import DocumentSettings, make_document
from promptcache.demo.names import NameSource
from promptcache.demo.samples import Answer, LayoutSettings, Sample, lay_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Padded at the end; padding has weight 0."""

    input_ids: Tensor  # [B, T]
    position_ids: Tensor  # [B, T]
    weights: Tensor  # [B, T]
    answers: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """`loss` keeps its graph; `right[i][j]` tells whether answer j of sample i is right."""

    loss: Tensor
    right: tuple[tuple[bool, ...], ...]


def draw_samples(
    rng: Random, names: NameSource, settings: DocumentSettings, tokenizer: Tokenizer, max_tokens: int
) -> tuple[Sample, ...]:
    """Draw samples of one kind until the padded batch would exceed `max_tokens`; at least one."""
    samples: list[Sample] = []
    longest = 0
    while True:
        sample = lay_out(make_document(rng, names, settings), tokenizer, rng, LayoutSettings())
        longest = max(longest, len(sample.token_ids))
        if samples and longest * (len(samples) + 1) > max_tokens:
            return tuple(samples)
        samples.append(sample)


def collate(samples: Sequence[Sample], pad_token_id: int) -> Batch:
    """Pad to the longest sample; padded positions go on counting."""
    length = max(len(sample.token_ids) for sample in samples)

    def padded(row: Callable[[Sample], Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        rows = [[*row(sample), *[fill] * (length - len(sample.token_ids))] for sample in samples]
        return torch.tensor(rows, dtype=dtype)

    return Batch(
        input_ids=padded(lambda sample: sample.token_ids, pad_token_id, torch.long),
        position_ids=padded(lambda sample: sample.position_ids, 0, torch.long),
        weights=padded(lambda sample: sample.weights, 0.0, torch.float32),
        answers=tuple(sample.answers for sample in samples),
    )


def score(model: LlamaForCausalLM, batch: Batch) -> Score:
    """One causal forward pass with explicit positions; logits only where a token has a weight."""
    hidden = model.model(
        input_ids=batch.input_ids,
        # Without a mask transformers takes a gap in the positions for the start of another packed sequence.
        attention_mask=torch.ones_like(batch.input_ids),
        position_ids=batch.position_ids,
        use_cache=False,
    ).last_hidden_state  # [B, T, hidden]
    wanted = batch.weights[:, 1:] > 0  # [B, T - 1]
    logits = model.lm_head(hidden[:, :-1][wanted]).float()  # [wanted, vocabulary]
    targets, weights = batch.input_ids[:, 1:][wanted], batch.weights[:, 1:][wanted]
    losses = functional.cross_entropy(logits, targets, reduction="none")
    hits = torch.zeros_like(wanted)
    hits[wanted] = logits.detach().argmax(-1) == targets
    right = tuple(
        tuple(bool(hits[row, answer.start - 1 : answer.stop - 1].all()) for answer in answers)
        for row, answers in enumerate(batch.answers)
    )
    return Score(loss=(losses * weights).sum() / weights.sum(), right=right)
