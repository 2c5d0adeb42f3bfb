"""The distance of a request from ordinary prefill: the text of its prompt as a model without a cache gets it.

Predictions are compared at every place of the greedy answer of ordinary prefill, the end of the prompt included.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import torch

from promptcache.diagnostics import Short
from promptcache.encode.executor import Executor
from promptcache.encode.prepare import Prepared, prepare
from promptcache.kv import KV
from promptcache.layout import Encoding, Level, Plan, RequestTokens
from promptcache.model import Model
from promptcache.rows import Batch
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
    """Comparison of a request with ordinary prefill of the same text.

    Attributes:
        schema: Name of the schema.
        level: Level of the request.
        plan: The plan that served it, with the tokens that it computes again (`plan.repaired`).
        divergence: Mean KL divergence of ordinary prefill from the request, in nats.
        agreement: Share of places with the same most probable token.
        num_places: Number of compared places: the tokens of ordinary prefill's greedy answer.
        same_first_token: Whether the first token of the two greedy answers is the same.
        answer: Greedy answer of the request.
        plain_answer: Greedy answer of ordinary prefill.
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
        """Whether the greedy answer of the request is that of ordinary prefill."""
        return self.agreement == 1.0


class PlainPrefill:
    """Plain prefill of a prompt, with its predictions at every place of its greedy answer.

    Attributes:
        tokens: The text of the prompt, tokenized as a whole.
        answer_ids: The greedy answer, its end token included.
    """

    def __init__(
        self, plan: Plan, model: Model, tokenizer: Tokenizer, eos_ids: Collection[int], max_new_tokens: int
    ) -> None:
        token_ids = whole_token_ids(plan, tokenizer)
        self.tokens = RequestTokens(parts=(), token_ids=token_ids, position_ids=tuple(range(len(token_ids))))
        self.answer_ids, logits = _greedy(Batch(model), self.tokens, {}, eos_ids, max_new_tokens)
        self._logprobs = logits.double().log_softmax(-1)

    def distance(self, prepared: Prepared, executor: Executor) -> Distance:
        """Return the distance of ordinary prefill from a plan of the prompt with its KV."""
        logits = prepared.logits(executor, self.answer_ids[:-1], num_last=len(self.answer_ids))
        return compare_predictions(logits.double().log_softmax(-1), self._logprobs)


def audit(plan: Plan, executor: Executor, tokenizer: Tokenizer, eos_ids: Collection[int], max_new_tokens: int) -> Audit:
    """Compare a planned request with ordinary prefill, at `max_new_tokens` places at most."""
    plain = PlainPrefill(plan, executor.model, tokenizer, eos_ids, max_new_tokens)
    prepared = prepare(plan, executor)
    plan, distance, answer_ids = prepared.plan, plain.distance(prepared, executor), plain.answer_ids
    if not distance.same_answer:
        batch = Batch(executor.model, executor.copies)
        answer_ids, _ = _greedy(batch, plan.tokens, prepared.fetched.kv_of, eos_ids, max_new_tokens)
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
    for is_control, group in groupby(plan.tokens.used_ids, key=tokenizer.control_ids.__contains__):
        own = tuple(group)
        token_ids += own if is_control else tokenizer.tokenize(tokenizer.detokenize(own))
    return tuple(token_ids)


def _greedy(
    batch: Batch, tokens: RequestTokens, kv_of: Mapping[Encoding, KV], eos_ids: Collection[int], max_new_tokens: int
) -> tuple[tuple[int, ...], torch.Tensor]:
    """Return the most probable continuation of a request, the end token included, and its logits `[places, V]`."""
    row, token_ids = batch.join(tokens, kv_of), tokens.token_ids
    answer_ids, logits = tuple[int, ...](), list[torch.Tensor]()
    while len(answer_ids) < max_new_tokens and not (answer_ids and answer_ids[-1] in eos_ids):
        logits.append(batch.step([(row, token_ids)])[0])
        answer_ids = (*answer_ids, int(logits[-1].argmax()))
        token_ids = answer_ids[-1:]
    return answer_ids, torch.stack(logits)
