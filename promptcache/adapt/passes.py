"""Forward passes of training: the teacher, which answers after plain prefill, and the student, which has modules.

The student's pass has the positions and the visibility of the engine's reference, so it computes what a cached request
computes. It has no cache, and has gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from promptcache.adapt.lessons import Lesson
from promptcache.layout import RequestTokens
from promptcache.runtime import Model, reference_inputs, reference_tokens, visibility


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What a model predicts at the last tokens of a question and at an answer.

    Attributes:
        logits: `[N, V]`, the logits that predict the token behind each of N tokens.
        hidden: `[L - 1, N, E]`, the states between the layers at these tokens.
    """

    logits: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtAnswer:
    """The teacher's answer to a lesson, and its predictions at the `num_shared` last tokens and the answer."""

    answer_ids: tuple[int, ...]
    predictions: Predictions


@torch.no_grad()
def teach(
    model: Model,
    lessons: Sequence[Lesson],
    end_ids: Sequence[int],
    max_new_tokens: int,
    sampled: Sequence[bool] = (),
    generator: torch.Generator | None = None,
) -> list[TaughtAnswer]:
    """Answer lessons after plain prefill, in one left-padded batch.

    Args:
        end_ids: The tokens that end an answer. The end is a part of the answer.
        sampled: For each lesson, whether the answer is sampled; otherwise it is greedy.
        generator: The random numbers of sampling, on the CPU.

    Raises:
        NotFinite: The logits are not finite.
    """
    num_rows = max(each.num_shared for each in lessons)
    lengths = torch.tensor([len(each.whole_ids) for each in lessons])
    width = int(lengths.max())
    token_ids = torch.tensor([[0] * (width - len(each.whole_ids)) + [*each.whole_ids] for each in lessons])
    cache = model.plain_cache(model.shape.num_layers)
    found = [_forward(model, *_padded_inputs(model, token_ids, lengths, width, 0), cache, num_rows)]
    answers: list[list[int]] = [[] for _ in lessons]
    is_open = [True] * len(lessons)
    for number in range(max_new_tokens):
        if not torch.isfinite(found[-1][0]).all():
            raise model.not_finite("logits of an answer")
        chosen = _choose(found[-1][0][:, -1], sampled, generator)
        for row, token_id in enumerate(chosen):
            if is_open[row]:
                answers[row].append(token_id)
                is_open[row] = token_id not in end_ids
        if number == max_new_tokens - 1 or not any(is_open):
            break
        lengths, width = lengths + 1, width + 1
        inputs = _padded_inputs(model, torch.tensor(chosen)[:, None], lengths, width, width - 1)
        found.append(_forward(model, *inputs, cache, 1))
    logits, hidden = torch.cat([each for each, _ in found], dim=1), torch.cat([each for _, each in found], dim=2)
    targets = []
    for row, (lesson, answer) in enumerate(zip(lessons, answers, strict=True)):
        rows = slice(num_rows - lesson.num_shared, num_rows + len(answer) - 1)
        predictions = Predictions(logits=logits[row, rows].clone(), hidden=hidden[:, row, rows].clone())
        targets.append(TaughtAnswer(answer_ids=tuple(answer), predictions=predictions))
    return targets


def student_predictions(model: Model, lesson: Lesson, answer_ids: Sequence[int]) -> Predictions:
    """Return the predictions of a request with modules, at the places of a target. They have gradients."""
    tokens = reference_tokens(_continued(lesson.tokens, answer_ids[:-1]))
    inputs = reference_inputs(tokens, visibility(tokens), model)
    return _predictions(model, inputs, lesson.num_shared + len(answer_ids) - 1)


def plain_predictions(model: Model, lesson: Lesson, answer_ids: Sequence[int]) -> Predictions:
    """Return the predictions after plain prefill, at the places of a target. They have gradients."""
    whole = (*lesson.whole_ids, *answer_ids[:-1])
    count = len(whole)
    inputs = _padded_inputs(model, torch.tensor([whole]), torch.tensor([count]), count, 0)
    return _predictions(model, inputs, lesson.num_shared + len(answer_ids) - 1)


def divergences(found: Predictions, target: Predictions) -> torch.Tensor:
    """Return the KL divergence `[N]` of predictions from those of the teacher, in nats."""
    there, here = target.logits.log_softmax(-1), found.logits.log_softmax(-1)
    return F.kl_div(here, there, reduction="none", log_target=True).sum(-1)


def hidden_distances(found: Predictions, target: Predictions) -> torch.Tensor:
    """Return the squared distance `[N]` of the hidden states, relative to their squared norm, mean over layers."""
    if not len(found.hidden):
        return found.logits.new_zeros(len(found.logits))
    there = target.hidden.to(found.logits.dtype)
    distance = (found.hidden.to(there.dtype) - there).square().sum(-1)
    return (distance / there.square().sum(-1).clamp_min(1e-6)).mean(0)


def _continued(tokens: RequestTokens, answer_ids: Sequence[int]) -> RequestTokens:
    start = tokens.position_ids[-1] + 1
    return replace(
        tokens,
        token_ids=(*tokens.token_ids, *answer_ids),
        position_ids=(*tokens.position_ids, *range(start, start + len(answer_ids))),
    )


def _choose(logits: torch.Tensor, sampled: Sequence[bool], generator: torch.Generator | None) -> list[int]:
    """Return a token for each row of `[B, V]`."""
    chosen = logits.argmax(-1).tolist()
    for row, is_sampled in enumerate(sampled):
        if is_sampled:
            shares = logits[row].double().softmax(-1).cpu()
            chosen[row] = int(torch.multinomial(shares, 1, generator=generator))
    return [*chosen]


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


def _predictions(model: Model, inputs: tuple[torch.Tensor, torch.Tensor, Any], num_rows: int) -> Predictions:
    logits, hidden = _forward(model, *inputs, model.plain_cache(model.shape.num_layers), num_rows)
    return Predictions(logits=logits[0], hidden=hidden[:, 0])


def _forward(
    model: Model, token_ids: torch.Tensor, position_ids: torch.Tensor, mask: Any, cache: Any, num_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits `[B, N, V]` and the states between layers `[L - 1, B, N, E]` of the last N tokens."""
    width = token_ids.shape[1]
    with model.without_autocast():
        output = model.hf(
            input_ids=token_ids,
            position_ids=position_ids,
            past_key_values=cache,
            attention_mask=mask,
            use_cache=True,
            output_hidden_states=True,
            **model.only_logits_of(range(width - num_rows, width)),
        )
    logits = output.logits[:, -num_rows:]
    is_half = torch.finfo(logits.dtype).bits < 32
    states = [each[:, -num_rows:] for each in output.hidden_states[1:-1]]
    hidden = torch.stack(states) if states else logits.new_zeros((0, *logits.shape[:2], 1))
    return logits.float() if is_half else logits, hidden
