"""The reference that a cached request must equal, computed without any cache.

It is one plain forward pass over all tokens, with explicit position IDs and an explicit mask. It is slow and short,
and it uses no code of linking, segments or stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from promptcache.layout import Encoding, RequestTokens
from promptcache.model.model import Model, token_tensor


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the reference.

    Attributes:
        encoding: Its encoding; None for the request's own tokens.
        shift: How far the encoding is moved.
        index: Its index in the encoding, or among the request's own tokens.
        in_use: Whether the request's own tokens attend to it.
    """

    encoding: Encoding | None
    shift: int
    index: int
    token_id: int
    position: int
    in_use: bool


def reference_tokens(request: RequestTokens) -> tuple[Token, ...]:
    """Return all tokens of the reference: every encoding in use, all their contexts, and the request's own tokens.

    Fillers that a prompt replaces, and states that a scaffold replaces, take part as tokens not in use: only encodings
    that were computed with them attend to them. The request's own tokens come last, in position order.

    Attention depends on the distances between positions only. So where a part is shifted, its encoding takes part with
    all of its contexts shifted as far, and no key is moved.
    """
    involved: dict[tuple[Encoding, int], None] = {}  # with the shift of each

    def add(encoding: Encoding, shift: int) -> None:
        """Add an encoding once, and before it its contexts.

        Some models let no token attend to a later one in the order of the input, whatever the mask is.
        """
        if (encoding, shift) not in involved:
            for part in encoding.context:
                add(part.encoding, shift + part.shift)
            involved[encoding, shift] = None

    for part in request.parts:
        add(part.encoding, part.shift)
    used = {(part.encoding, part.shift, index) for part in request.parts for index in range(part.start, part.stop)}
    stored = (
        Token(encoding, shift, index, token_id, position + shift, (encoding, shift, index) in used)
        for encoding, shift in involved
        for index, (token_id, position) in enumerate(zip(encoding.token_ids, encoding.position_ids, strict=True))
    )
    own = (
        Token(None, 0, index, token_id, position, True)
        for index, (token_id, position) in enumerate(zip(request.token_ids, request.position_ids, strict=True))
    )
    return (*stored, *own)


def used_tokens(request: RequestTokens) -> tuple[Token, ...]:
    """Return the tokens in use, in position order: the prompt as a model without a cache gets it."""
    in_use = (token for token in reference_tokens(request) if token.in_use)
    return tuple(sorted(in_use, key=lambda token: token.position))


def visibility(tokens: tuple[Token, ...]) -> torch.Tensor:
    """Return the mask, bool `[S, S]`.

    A token attends to itself and to lower positions: those of its own encoding and context, or for the request's own
    tokens those in use.
    """
    owner_of = [(token.encoding, token.shift) for token in tokens]
    numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owner_of))}
    owners = torch.tensor([numbers[owner] for owner in owner_of])
    positions = torch.tensor([token.position for token in tokens])
    known = torch.zeros((len(tokens), len(tokens)), dtype=torch.bool)
    for (encoding, shift), number in numbers.items():
        if encoding is None:
            known[owners == number] = torch.tensor([token.in_use for token in tokens])
        else:
            parts = (encoding.whole, *encoding.context)
            seen = {
                (part.encoding, shift + part.shift, index) for part in parts for index in range(part.start, part.stop)
            }
            known[owners == number] = torch.tensor([(each.encoding, each.shift, each.index) in seen for each in tokens])
    known &= positions[None, :] < positions[:, None]
    return known.fill_diagonal_(True)


@torch.no_grad()
def reference_logits(request: RequestTokens, model: Model) -> torch.Tensor:
    """Return the logits `[N, V]` of a request's N new tokens, in position order, from the masked reference."""
    tokens = reference_tokens(request)
    return _forward(tokens, visibility(tokens), model)[-len(request.token_ids) :]


@torch.no_grad()
def plain_logits(request: RequestTokens, model: Model) -> torch.Tensor:
    """Return the same logits `[N, V]` from plain causal prefill of the tokens in use at the same positions."""
    tokens = used_tokens(request)
    causal = torch.ones((len(tokens), len(tokens)), dtype=torch.bool).tril()
    logits = _forward(tokens, causal, model)
    return logits[[index for index, token in enumerate(tokens) if token.encoding is None]]


def reference_inputs(
    tokens: tuple[Token, ...], sees: torch.Tensor, model: Model
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return token IDs and position IDs, both `[1, S]` on the device of the model, and the mask of their forward pass.

    Args:
        sees: Bool `[S, S]`, True where a token attends to another one.
    """
    positions = torch.tensor([token.position for token in tokens])
    positions -= min(0, int(positions.min()))  # models with a table of positions have none below 0
    mask = model.attention_masks(sees, positions[:, None] - positions[None, :])
    token_ids = token_tensor([token.token_id for token in tokens], model.device)
    return token_ids, positions[None].to(model.device), mask


def _forward(tokens: tuple[Token, ...], sees: torch.Tensor, model: Model) -> torch.Tensor:
    token_ids, position_ids, mask = reference_inputs(tokens, sees, model)
    cache = model.plain_cache(model.shape.num_layers)  # without a cache, transformers takes gaps for packed sequences
    return model.forward(token_ids, position_ids, cache, mask)[0]
