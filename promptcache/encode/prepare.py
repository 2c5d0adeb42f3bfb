"""The stage where a plan meets KV: refine it, fetch the KV that it uses, and look up its new tokens in history."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from promptcache.encode.encode import Progress
from promptcache.encode.executor import Executor, Fetched
from promptcache.layout import Plan
from promptcache.model import reference_logits
from promptcache.rows import Batch, Recalled

Refiner: TypeAlias = Callable[[Plan, str | None], Plan]
"""Maps the plan of a request with some salt to the one that is used, of the same tokens at the same positions, by the
KV that there is. Thread-safe.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan with the KV that it uses.

    Attributes:
        fetched: KV of its stored tokens.
        recalled: KV of new tokens that history has; None for a request without history.
        refine_s, fetch_s, choose_s: Seconds: of the refiners, of looking up and loading KV, and of choosing the tokens
            that `repair="attended-K"` computes again. `fetched` has those of encoding what was missing.
    """

    plan: Plan
    fetched: Fetched
    recalled: Recalled | None
    refine_s: float
    fetch_s: float
    choose_s: float

    def logits(
        self, executor: Executor, answer_ids: Sequence[int] = (), *, num_last: int | None = None
    ) -> torch.Tensor:
        """Return the logits `[N, V]` of the N new tokens of the plan and of an answer behind it, in position order.

        Args:
            num_last: Return those of the last tokens only, so many; None means all.
        """
        tokens = self.plan.continued(answer_ids).tokens
        batch = Batch(executor.model, executor.copies)
        row = batch.join(tokens, self.fetched.kv_of)
        return batch.step([(row, tokens.token_ids)], num_last=num_last)


def prepare(
    plan: Plan,
    executor: Executor,
    *,
    refiners: Sequence[Refiner] = (),
    history: bool = False,
    salt: str | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Return a plan with the KV that it uses. Missing KV is encoded.

    Args:
        refiners: Change the plan first, one after another.
        history: Whether the request reads history.
        salt: Requests share history only with requests of the same salt.
        progress: As for `Executor.fetch`.
    """
    started = time.perf_counter()
    for refine in refiners:
        plan = refine(plan, salt)
    refined = time.perf_counter()
    fetched = executor.fetch([part.encoding for part in plan.tokens.parts], progress)
    at = time.perf_counter()
    if plan.awaits_choice:
        plan = executor.choose(plan, fetched.kv_of, salt)
    choose_s = time.perf_counter() - at
    recalled = executor.recall(plan.tokens, salt) if history else None
    return Prepared(
        plan=plan,
        fetched=fetched,
        recalled=recalled,
        refine_s=refined - started,
        fetch_s=time.perf_counter() - refined - fetched.encode_s - choose_s,
        choose_s=choose_s,
    )


def linked_logits(plan: Plan, executor: Executor, *, num_last: int | None = None) -> torch.Tensor:
    """Return the logits `[N, V]` of a plan's N new tokens from linked KV, as `Prepared.logits`."""
    return prepare(plan, executor).logits(executor, num_last=num_last)


def expected_logits(plan: Plan, executor: Executor) -> torch.Tensor:
    """Return the logits `[N, V]` that `linked_logits` must equal, from one forward pass without cache. Slow."""
    if plan.awaits_choice:
        plan = prepare(plan, executor).plan
    return reference_logits(plan.tokens, executor.model)
