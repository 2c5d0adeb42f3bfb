"""Find the cached tokens that new tokens attend to most, from the attention that transformers itself returns."""

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

import torch

from promptcache.language import Repair, RepairKind
from promptcache.layout import Level, Plan, RequestTokens
from promptcache.model import Model
from promptcache.model.reference import reference_inputs, reference_tokens, visibility
from promptcache.rows.weighing import middle_layers
from tests.laws.level_oracle import inexact_positions


def attended(plan: Plan, model: Model) -> Plan:
    """Return the plan that `repair="attended-K"` comes to; the same plan if it has another repair."""
    if plan.repair.kind is not RepairKind.ATTENDED or plan.level is Level.EXACT:
        return plan
    return plan.with_choice(most_attended(plan, plan.repair, weights(plan.question, model)))


def most_attended(plan: Plan, repair: Repair, weight: Sequence[float]) -> set[int]:
    """Return the positions that a repair chooses by weights of positions, for a plan with the repair "slots"."""
    inexact = inexact_positions(plan)
    run_of = {position: piece.run.index for piece in plan.reused for position in piece.position_ids}
    sizes = Counter(run_of[position] for position in inexact)
    share = Fraction(repair.amount, 100)
    number = sum(ceil(share * size) if repair.is_share else min(size, repair.amount) for size in sizes.values())
    return set(sorted(inexact, key=lambda position: (-weight[position], position))[:number])


@torch.no_grad()
def weights(request: RequestTokens, model: Model) -> list[float]:
    """Return the attention of a request's new tokens to each position, summed over the heads of middle layers."""
    tokens = reference_tokens(request)
    token_ids, positions, mask = reference_inputs(tokens, visibility(tokens), model)
    cache = model.plain_cache(model.shape.num_layers)
    found = _eager(model)(
        token_ids, position_ids=positions, attention_mask=mask, past_key_values=cache, output_attentions=True
    ).attentions
    summed = [0.0] * (request.position_ids[-1] + 1)
    for layer in middle_layers(model.facts.windows):
        for key, token in enumerate(tokens):
            if token.in_use:
                summed[token.position] += float(found[layer][0, :, -len(request.token_ids) :, key].sum())
    return summed


@cache
def _eager(model: Model) -> Any:
    copy = deepcopy(model.hf)
    copy.set_attn_implementation("eager")
    return copy
