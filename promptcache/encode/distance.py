"""The distance of a request from plain prefill: the text of its prompt as a model without a cache gets it.

Predictions are compared at every place of the greedy answer of plain prefill, the end of the prompt included.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import torch

from promptcache.diagnostics import Short
from promptcache.encode.executor import Executor
from promptcache.encode.prepare import linked_logits, prepare
from promptcache.layout import Level, Plan
from promptcache.model import Model, token_tensor, used_tokens
from promptcache.tokenizer import Tokenizer

DEFAULT_AUDIT_TOKENS = 32
"""Default limit of the places that an audit compares."""


class Distance(NamedTuple):
    """Distance between two predictions of one answer, at the end of the prompt and at each token of the answer.

    Attributes:
        divergence: Mean KL divergence of the next token from the other prediction, in nats.
        agrees: Whether the most probable next token is the same, for each compared place.
    """

    divergence: float
    agrees: tuple[bool, ...]

    @property
    def agreement(self) -> float:
        """Share of places with the same most probable next token."""
        return sum(self.agrees) / len(self.agrees)

    @property
    def same_answer(self) -> bool:
        """Whether the most probable token is the same at every place, so that greedy answers are equal."""
        return all(self.agrees)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Audit(Short):
    """Comparison of a request with plain prefill of the same text.

    Attributes:
        schema: Name of the schema.
        level: Level of the request.
        plan: The plan that served it, with the tokens that it computes again (`plan.repaired`).
        divergence: Mean KL divergence of plain prefill from the request, in nats.
        agreement: Share of places with the same most probable token.
        num_places: Number of compared places: the tokens of plain prefill's greedy answer.
        same_first_token: Whether the first token of the two greedy answers is the same.
        answer: Greedy answer of the request.
        plain_answer: Greedy answer of plain prefill.
    """

    schema: str
    level: Level
    divergence: float
    agreement: float
    num_places: int
    same_first_token: bool
    answer: str
    plain_answer: str
    plan: Plan = field(repr=False)

    @property
    def same_answer(self) -> bool:
        """Whether the greedy answer of the request is that of plain prefill."""
        return self.agreement == 1.0


class PlainPrefill:
    """Plain prefill of a prompt, with its predictions at every place of its greedy answer.

    Attributes:
        token_ids: The text of the prompt, tokenized as a whole.
        answer_ids: The greedy answer, its end token included.
    """

    def __init__(
        self, plan: Plan, model: Model, tokenizer: Tokenizer, eos_ids: Collection[int], max_new_tokens: int
    ) -> None:
        """Compute the greedy answer of a planned prompt without a cache of modules."""
        self.token_ids = whole_token_ids(plan, tokenizer)
        self.answer_ids, self._logprobs = _greedy(model, self.token_ids, eos_ids, max_new_tokens)

    def distance(self, plan: Plan, executor: Executor) -> Distance:
        """Return the distance of plain prefill from a plan of the prompt, computed from linked KV."""
        plan = prepare(plan, executor).plan.continued(self.answer_ids[:-1])
        logits = linked_logits(plan, executor, num_last=len(self.answer_ids))
        return compare_predictions(logits.double().log_softmax(-1), self._logprobs)


def audit(plan: Plan, executor: Executor, tokenizer: Tokenizer, eos_ids: Collection[int], max_new_tokens: int) -> Audit:
    """Compare a planned request with plain prefill.

    Args:
        eos_ids: Tokens that end an answer.
        max_new_tokens: Limit of the compared places.
    """
    plain = PlainPrefill(plan, executor.model, tokenizer, eos_ids, max_new_tokens)
    plan = prepare(plan, executor).plan
    distance = plain.distance(plan, executor)
    answer_ids = list(plain.answer_ids)
    if not distance.same_answer:
        del answer_ids[distance.agrees.index(False) :]
        while len(answer_ids) < max_new_tokens and not (answer_ids and answer_ids[-1] in eos_ids):
            answer_ids.append(int(linked_logits(plan.continued(answer_ids), executor, num_last=1).argmax()))
    return Audit(
        schema=plan.selection.schema.name,
        level=plan.level,
        divergence=distance.divergence,
        agreement=distance.agreement,
        num_places=len(distance.agrees),
        same_first_token=distance.agrees[0],
        answer=tokenizer.decode(answer_ids),
        plain_answer=tokenizer.decode(plain.answer_ids),
        plan=plan,
    )


def compare_predictions(here: torch.Tensor, there: torch.Tensor) -> Distance:
    """Return the distance of `there` from `here`; both are log-probabilities `[places, V]`."""
    divergence = torch.nn.functional.kl_div(here, there, reduction="none", log_target=True).sum(-1).mean()
    return Distance(max(0.0, float(divergence)), tuple((here.argmax(-1) == there.argmax(-1)).tolist()))


def whole_token_ids(plan: Plan, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens of a prompt's text, with each text between two control tokens tokenized as a whole."""
    token_ids: list[int] = []
    used = (token.token_id for token in used_tokens(plan.tokens))
    for is_control, group in groupby(used, key=tokenizer.control_ids.__contains__):
        own = tuple(group)
        token_ids += own if is_control else tokenizer.tokenize(tokenizer.detokenize(own))
    return tuple(token_ids)


@torch.no_grad()
def _greedy(
    model: Model, token_ids: Sequence[int], eos_ids: Collection[int], max_new_tokens: int
) -> tuple[tuple[int, ...], torch.Tensor]:
    """Return the most probable continuation of a prompt, the end token included, and log-probabilities `[places, V]`.

    They are those of one plain causal prefill without gaps. Each token of the answer is one more step.
    """
    cache, all_ids, logits = model.plain_cache(model.shape.num_layers), list(token_ids), list[torch.Tensor]()
    if len(token_ids) > 1:  # no logits of a whole prompt
        tokens, positions, mask = _inputs(model, token_ids, 0, len(token_ids) - 1)
        model.encode(tokens, positions, cache, mask)
    while len(logits) < max_new_tokens and not (logits and all_ids[-1] in eos_ids):
        tokens, positions, mask = _inputs(model, all_ids, len(all_ids) - 1, len(all_ids))
        logits.append(model.forward(tokens, positions, cache, mask)[0, -1])
        all_ids.append(int(logits[-1].argmax()))
    return tuple(all_ids[len(token_ids) :]), torch.stack(logits).double().log_softmax(-1)


def _inputs(model: Model, token_ids: Sequence[int], start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return token IDs and positions `[1, T]` of the tokens `[start, stop)`, and their causal mask over `stop` keys."""
    positions = torch.arange(stop)
    sees = torch.ones((stop - start, stop), dtype=torch.bool).tril(start)
    mask = model.attention_masks(sees, positions[start:, None] - positions[None, :])
    return token_tensor(token_ids[start:stop], model.device), token_tensor(range(start, stop), model.device), mask
