"""Sampling for rows of different requests: rows with equal options are sampled together.

Options have the meaning of transformers' `generate`, in its order: repetition penalty, minimum of new tokens,
temperature, top-k, top-p, min-p. Penalties and biases in the form of OpenAI come before them. Each row has a random
generator of its own, so its tokens do not depend on its neighbors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from promptcache.attention import to_device
from promptcache.decode.job import Job
from promptcache.options import Options

_FIRST_CANDIDATES = 1024
"""Number of tokens that are sorted for top-p. All tokens are sorted only if these have too little probability."""

_ROUNDING = 2.0**-16
"""Scores count as equal up to this relative difference, because rounding depends on the size of a batch."""


def sample(logits: torch.Tensor, jobs: Sequence[Job]) -> list[int]:
    """Return the next token of each job; -1 for a sampled one in which no token has a probability above 0.

    Args:
        logits: `[R, V]`. Not changed.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # as transformers; also faster than bfloat16
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, job in enumerate(jobs):
        groups.setdefault(job.sampling.sampling, []).append(index)
    chosen = [0] * len(jobs)
    for indices in groups.values():
        some = [jobs[index] for index in indices]
        options = some[0].sampling
        scores = penalized(logits if len(some) == len(jobs) else logits[indices], options, some)
        if options.is_sampled:
            draws = torch.stack([torch.rand((), generator=job.generator, dtype=torch.float64) for job in some])
            tokens, weights = candidates(scores / options.temperature, options)
            drawn = _drawn(tokens, weights, to_device(draws, scores.device))
        else:
            drawn = scores.argmax(-1)
        for index, token in zip(indices, drawn.tolist(), strict=True):
            chosen[index] = token
    return chosen


def penalized(logits: torch.Tensor, options: Options, jobs: Sequence[Job]) -> torch.Tensor:
    """Return the logits after changes and the repetition penalty.

    End tokens are masked in rows with too few new tokens.
    """
    early = [index for index, job in enumerate(jobs) if len(job.token_ids) < options.min_new_tokens and options.end_ids]
    changes = options.repetition_penalty != 1.0 or options.presence_penalty or options.frequency_penalty
    if not (changes or options.logit_bias or early):
        return logits
    scores = logits.clone()
    for job, row_scores in zip(jobs, scores, strict=True):
        change_logits_(row_scores, job, options)
        if (penalty := options.repetition_penalty) != 1.0:
            seen = job.seen[0]
            found = row_scores[seen]  # equal tokens have equal scores, also below
            row_scores[seen] = torch.where(found < 0, found * penalty, found / penalty)
    if early:
        known = [each for each in options.end_ids if each < scores.shape[1]]  # a tokenizer may have more tokens
        ends = torch.tensor(known, dtype=torch.long, device=scores.device)
        scores[torch.tensor(early, device=scores.device)[:, None], ends] = -torch.inf
    return scores


def change_logits_(scores: torch.Tensor, job: Job, options: Options) -> None:
    """Apply the penalties and the bias in the form of OpenAI to the logits `[V]` of the next token, in place."""
    answer_ids = job.seen[0, job.seen.shape[1] - len(job.token_ids) :]
    if (options.presence_penalty or options.frequency_penalty) and answer_ids.numel():
        counts = torch.bincount(answer_ids)
        tokens = counts.nonzero()[:, 0]
        penalties = options.presence_penalty + options.frequency_penalty * counts[tokens]
        scores[tokens] -= penalties.to(scores.dtype)
    if options.logit_bias:
        tokens = torch.tensor([*options.logit_bias], device=scores.device)
        biases = torch.tensor([float(each) for each in options.logit_bias.values()], device=scores.device)
        scores[tokens] += biases.to(scores.dtype)


def candidates(scores: torch.Tensor, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens `[R, K]` that may be chosen, in order of their IDs, and their weights.

    A token that is as probable as the last one that top-k and top-p keep is kept, too. So the kept tokens do not
    depend on the order of equal scores, on rounding, or on other rows of a batch.

    Args:
        scores: Logits `[R, V]` over the temperature.
    """
    size = scores.shape[1]
    tokens = torch.arange(size, device=scores.device).expand(scores.shape)
    if not options.top_k and options.top_p >= 1.0:
        weights = scores.softmax(-1)
    else:
        first = options.top_k + 1 if options.top_k else _FIRST_CANDIDATES
        values, places = scores.topk(min(size, first))
        weights = _kept_weights(scores, values, options)
        if values.shape[1] < size and bool((weights[:, -1] > 0).any()):  # more tokens may be kept
            values, places = scores.sort(-1, descending=True)
            weights = _kept_weights(scores, values, options)
            weights = torch.empty_like(weights).scatter_(-1, places, weights)
        else:
            tokens, order = places.sort(-1)
            weights = weights.gather(-1, order)
    if options.min_p:
        least = options.min_p * weights.amax(-1, keepdim=True)
        weights = weights.masked_fill(weights < least * (1 - _ROUNDING), 0.0)
    return tokens, weights


def _kept_weights(scores: torch.Tensor, values: torch.Tensor, options: Options) -> torch.Tensor:
    """Return the weights `[R, K]` of tokens; 0 for those that top-k or top-p leaves out.

    Args:
        scores: `[R, V]`.
        values: The K largest scores of each row, in descending order.
    """
    if 0 < options.top_k < values.shape[1]:
        values = _without_less_than(values, values[:, options.top_k - 1 : options.top_k])
    total = (values if options.top_k else scores).logsumexp(-1, keepdim=True)
    weights = (values - total).exp()
    if options.top_p >= 1.0:
        return weights
    num_kept = (weights.cumsum(-1) - weights < options.top_p).sum(-1, keepdim=True).clamp(min=1)  # as in transformers
    return (_without_less_than(values, values.gather(-1, num_kept - 1)) - total).exp()


def _without_less_than(values: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """Return scores `[R, K]`, minus infinity where they are less than `least` `[R, 1]` by more than rounding."""
    return values.masked_fill(values < least - _ROUNDING * least.abs(), -torch.inf)


def _drawn(tokens: torch.Tensor, weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return for each row the token at which the running sum of the weights exceeds the draw `[R]` in [0, 1).

    -1 for a row without a weight above 0, or with a NaN.
    """
    sums = weights.to(torch.float64).cumsum(-1)
    all_of_row = sums[:, -1:]
    places = torch.searchsorted(sums, draws[:, None] * all_of_row, right=True)
    last = (sums < all_of_row).sum(-1, keepdim=True)
    chosen = tokens.gather(1, torch.minimum(places, last))[:, 0]
    return torch.where(all_of_row[:, 0] > 0, chosen, -1)
