"""The reference: what a cached request must equal, computed without any cache.

Comes in: a plan. Goes out: logits of its new tokens from one plain forward pass over all tokens, with explicit position
IDs and a mask that says who sees whom. Slow, short, and obviously right; nothing of linking, segments or stores is
used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from promptcache.layout.types import Plan
from promptcache.runtime.hf.model import Model, token_tensor

_REQUEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token of the reference: `owner` is the index of its encoding, or -1 for the request's own."""

    owner: int
    token_id: int
    position: int
    in_use: bool


def reference_tokens(plan: Plan) -> tuple[Token, ...]:
    """Return all tokens that take part: every encoding in use, everything those have seen, and the request's own.

    Fillers that a prompt replaces and states that a scaffold supersedes take part as tokens not in use: only their
    dependants see them. The request's own tokens come last, in position order.
    """
    used = {(reuse.encoding, index) for reuse in plan.reuse for index in range(reuse.start, reuse.stop)}
    stored = (
        Token(owner=owner, token_id=token_id, position=position, in_use=(owner, index) in used)
        for owner in sorted(_involved(plan))
        for index, (token_id, position) in enumerate(
            zip(plan.encodings[owner].token_ids, plan.encodings[owner].position_ids, strict=True)
        )
    )
    own = (
        Token(owner=_REQUEST, token_id=token_id, position=prefill.start + index, in_use=True)
        for prefill in plan.prefill
        for index, token_id in enumerate(prefill.token_ids)
    )
    return (*stored, *own)


def visibility(tokens: tuple[Token, ...], plan: Plan) -> torch.Tensor:
    """Return who sees whom, bool `[S, S]`: itself, and lower positions in its own encoding and context, or in use."""
    sees = torch.zeros((len(tokens), len(tokens)), dtype=torch.bool)
    for row, token in enumerate(tokens):
        context = set() if token.owner == _REQUEST else {token.owner, *plan.encodings[token.owner].context}
        for column, other in enumerate(tokens):
            known = other.in_use if token.owner == _REQUEST else other.owner in context
            sees[row, column] = row == column or (known and other.position < token.position)
    return sees


@torch.no_grad()
def reference_logits(plan: Plan, model: Model) -> torch.Tensor:
    """Return the logits `[N, V]` of the plan's N new tokens, in position order, by the masked reference."""
    tokens = reference_tokens(plan)
    logits = _forward(tokens, visibility(tokens, plan), model)
    return logits[-plan.num_new_tokens :]


@torch.no_grad()
def plain_logits(plan: Plan, model: Model) -> torch.Tensor:
    """Return the same logits `[N, V]` from ordinary causal prefill of the same tokens at the same positions."""
    tokens = sorted((token for token in reference_tokens(plan) if token.in_use), key=lambda token: token.position)
    causal = torch.ones((len(tokens), len(tokens)), dtype=torch.bool).tril()
    logits = _forward(tuple(tokens), causal, model)
    return logits[[index for index, token in enumerate(tokens) if token.owner == _REQUEST]]


def _involved(plan: Plan) -> set[int]:
    found: set[int] = set()
    stack = [reuse.encoding for reuse in plan.reuse]
    while stack:
        index = stack.pop()
        if index not in found:
            found.add(index)
            stack.extend(plan.encodings[index].context)
    return found


def _forward(tokens: tuple[Token, ...], sees: torch.Tensor, model: Model) -> torch.Tensor:
    positions = torch.tensor([token.position for token in tokens])
    mask = model.attention_masks(sees, positions[:, None] - positions[None, :])
    token_ids = token_tensor([token.token_id for token in tokens], model.device)
    cache = model.plain_cache(model.shape.num_layers)  # without one, gaps pass for packed sequences
    return model.forward(token_ids, positions[None].to(model.device), cache, mask)[0]
