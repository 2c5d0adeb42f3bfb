"""Forward passes of training: the teacher's after plain prefill, and the student's over modules.

The student's pass has the positions and the visibility of the engine's reference, so it computes what a cached request
computes, with gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from promptcache.adapt.lessons import Lesson
from promptcache.layout import RequestTokens
from promptcache.runtime import (
    Model,
    Token,
    adapted,
    adapted_tokens,
    reference_inputs,
    reference_tokens,
    used_tokens,
    visibility,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtAnswer:
    """The teacher's answer to a prompt, and its logits `[N, V]` at the answer's tokens."""

    answer_ids: tuple[int, ...]
    logits: torch.Tensor


@torch.no_grad()
def plain_kv(model: Model, request: RequestTokens) -> torch.Tensor:
    """Return the KV `[L, 2, Hkv, N, D]` of the adapted tokens of a request after plain prefill."""
    tokens = [each for each in used_tokens(request) if each.encoding is not None]
    last = max(index for index, each in enumerate(tokens) if _is_adapted(each))
    lowest = min(0, *(each.position for each in _stored_tokens(request)))  # the student's positions begin there
    tokens = [replace(each, position=each.position - lowest) for each in tokens[: last + 1]]
    causal = torch.ones((len(tokens), len(tokens)), dtype=torch.bool).tril()
    token_ids, position_ids, mask = reference_inputs(tuple(tokens), causal, model)
    cache = model.plain_cache(model.shape.num_layers)
    model.encode(token_ids, position_ids, cache, mask)
    return _kv(cache, [index for index, each in enumerate(tokens) if _is_adapted(each)])


def modular_kv(model: Model, request: RequestTokens) -> torch.Tensor:
    """Return the KV `[L, 2, Hkv, N, D]` of the same tokens as modules are encoded. It has gradients."""
    tokens = _stored_tokens(request)
    token_ids, position_ids, mask = reference_inputs(tokens, visibility(tokens), model)
    cache = model.plain_cache(model.shape.num_layers)
    with adapted(adapted_tokens(tokens)):
        model.encode(token_ids, position_ids, cache, mask)
    chosen = [index for index, each in enumerate(tokens) if each.in_use and _is_adapted(each)]
    return _kv(cache, sorted(chosen, key=lambda index: tokens[index].position))


def kv_distances(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared distance of keys and of values, `[L, 2]`, over tokens."""
    return (found.float() - target.float()).square().sum((2, 4)).mean(-1)


@torch.no_grad()
def teach(model: Model, lessons: Sequence[Lesson], end_ids: Sequence[int], max_new_tokens: int) -> list[TaughtAnswer]:
    """Answer prompts greedily after plain prefill, in one left-padded batch.

    Args:
        end_ids: The tokens that end an answer. The end is a part of the answer.

    Raises:
        NotFinite: The logits are not finite.
    """
    lengths = torch.tensor([len(each.whole_ids) for each in lessons])
    width = int(lengths.max())
    token_ids = torch.tensor([[0] * (width - len(each.whole_ids)) + [*each.whole_ids] for each in lessons])
    cache = model.plain_cache(model.shape.num_layers)
    found = [_last_logits(model, *_padded_inputs(model, token_ids, lengths, width, 0), cache)]
    answers: list[list[int]] = [[] for _ in lessons]
    is_open = [True] * len(lessons)
    for number in range(max_new_tokens):
        if not torch.isfinite(found[-1]).all():
            raise model.not_finite("logits of an answer")
        chosen = found[-1].argmax(-1).tolist()
        for row, token_id in enumerate(chosen):
            if is_open[row]:
                answers[row].append(token_id)
                is_open[row] = token_id not in end_ids
        if number == max_new_tokens - 1 or not any(is_open):
            break
        lengths, width = lengths + 1, width + 1
        inputs = _padded_inputs(model, torch.tensor(chosen)[:, None], lengths, width, width - 1)
        found.append(_last_logits(model, *inputs, cache))
    logits = torch.stack(found, dim=1)  # [B, N, V]
    return [
        TaughtAnswer(answer_ids=tuple(answer), logits=logits[row, : len(answer)].clone())
        for row, answer in enumerate(answers)
    ]


@torch.no_grad()
def modular_logits(model: Model, lesson: Lesson, answer_ids: Sequence[int]) -> torch.Tensor:
    """Return the logits `[N, V]` of a request with modules at the N tokens of an answer."""
    tokens = reference_tokens(_continued(lesson.tokens, answer_ids[:-1]))
    token_ids, position_ids, mask = reference_inputs(tokens, visibility(tokens), model)
    cache = model.plain_cache(model.shape.num_layers)
    keep = torch.arange(len(tokens) - len(answer_ids), len(tokens))
    with adapted(adapted_tokens(tokens)):
        return model.forward(token_ids, position_ids, cache, mask, keep=keep)[0].float()


def divergences(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence `[N]` of logits `[N, V]` from those of the teacher, in nats."""
    there, here = target.log_softmax(-1), found.log_softmax(-1)
    return F.kl_div(here, there, reduction="none", log_target=True).sum(-1)


def _is_adapted(token: Token) -> bool:
    return token.encoding is not None and token.encoding.is_adapted


def _stored_tokens(request: RequestTokens) -> tuple[Token, ...]:
    return tuple(each for each in reference_tokens(request) if each.encoding is not None)


def _kv(cache: Any, chosen: Sequence[int]) -> torch.Tensor:
    return torch.stack([torch.stack([layer.keys[0][:, chosen], layer.values[0][:, chosen]]) for layer in cache.layers])


def _continued(tokens: RequestTokens, answer_ids: Sequence[int]) -> RequestTokens:
    start = tokens.position_ids[-1] + 1
    return replace(
        tokens,
        token_ids=(*tokens.token_ids, *answer_ids),
        position_ids=(*tokens.position_ids, *range(start, start + len(answer_ids))),
    )


def _padded_inputs(
    model: Model, token_ids: torch.Tensor, lengths: torch.Tensor, width: int, start: int
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return token IDs and positions `[B, T]` of the tokens `[start, width)` of left-padded rows, and their mask.

    Padding sees itself only, and nothing sees padding.
    """
    columns = torch.arange(width)
    first = width - lengths[:, None]  # [B, 1], the column of the first token
    positions = (columns[None] - first).clamp(min=0)
    causal = columns[start:, None] >= columns[None]
    masks: list[Any] = []
    for row in range(len(lengths)):
        sees = causal & (columns >= first[row]) | (columns[start:, None] == columns)
        masks.append(model.attention_masks(sees, positions[row, start:, None] - positions[row][None]))
    mask: Any
    if isinstance(masks[0], dict):  # one for each type of layer
        mask = {name: torch.cat([each[name] for each in masks]) for name in masks[0]}
    else:
        mask = torch.cat(masks)
    return token_ids.to(model.device), positions[:, start:].to(model.device), mask


def _last_logits(
    model: Model, token_ids: torch.Tensor, position_ids: torch.Tensor, mask: Any, cache: Any
) -> torch.Tensor:
    """Return the logits `[B, V]` of the last tokens."""
    keep = torch.tensor([token_ids.shape[1] - 1])
    return model.forward(token_ids, position_ids, cache, mask, keep=keep)[:, 0].float()
