"""Sampling for rows of different requests: rows with equal settings are sampled together.

Settings have the meaning of transformers' `generate`, in its order: repetition penalty, minimum of new tokens,
temperature, top-k, top-p, min-p. Each row has a random generator of its own, so its tokens do not depend on its
neighbors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from promptcache.runtime.attention import to_device
from promptcache.runtime.hf.model import Model
from promptcache.runtime.hf.options import OTHER_LOOPS, configured_settings, setting
from promptcache.runtime.logit_changes import LogitChanges

_FIRST_CANDIDATES = 1024
"""Number of tokens that are sorted for top-p. All tokens are sorted only if these have too little probability."""

_ROUNDING = 2.0**-16
"""Scores count as equal up to this relative difference, because rounding depends on the size of a batch."""

_ANY: Any = object()

_ROWS_TAKE: Mapping[str, Any] = {
    **dict.fromkeys(("do_sample", "temperature", "top_k", "top_p", "min_p"), _ANY),
    **dict.fromkeys(("repetition_penalty", "min_new_tokens"), _ANY),
    # These end an answer, pass it on, or give it several times.
    **dict.fromkeys(("eos_token_id", "stop_strings", "stopping_criteria", "streamer", "tokenizer", "max_time"), _ANY),
    "num_return_sequences": _ANY,
    # These change nothing in a row, or every request overrides them.
    **dict.fromkeys(("pad_token_id", "bos_token_id", "decoder_start_token_id", "transformers_version"), _ANY),
    **dict.fromkeys(("max_new_tokens", "max_length", "min_length"), _ANY),
    **dict.fromkeys(("use_cache", "cache_implementation", "prefill_chunk_size"), _ANY),
    **dict.fromkeys(("length_penalty", "early_stopping", "diversity_penalty"), _ANY),  # of beams
    **dict.fromkeys(OTHER_LOOPS, _ANY),
    **dict.fromkeys(("encoder_repetition_penalty", "typical_p"), 1.0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), 0.0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
}
"""Options of `generate` that need no processors of transformers, with the value: any, or the one without effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """Sampling settings of a row.

    Attributes:
        temperature: 0 is greedy decoding.
        top_k: 0 is no limit.
        top_p: 1 is no limit.
        min_p: Tokens with less than this share of the highest probability are left out.
        changes: Changes of logits before all others.
        end_ids: Tokens that are not chosen before there are `min_new_tokens`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    changes: LogitChanges = field(default_factory=LogitChanges)
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    end_ids: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class SampledRow:
    """A row whose next token is sampled.

    Attributes:
        seen: The tokens of prompt and answer so far, `[T]`; penalties read them.
        num_new: How many of them were generated.
    """

    settings: SamplingSettings
    generator: torch.Generator
    seen: torch.Tensor
    num_new: int

    @property
    def answer(self) -> torch.Tensor:
        """The tokens of the answer so far, `[n]`."""
        return self.seen[max(0, len(self.seen) - self.num_new) :]


def needs_processors(options: Mapping[str, Any], model: Model) -> bool:
    """Whether options, or the model's generation configuration, ask for a setting that `SamplingSettings` lacks."""
    for name in {*options, *configured_settings(model)}:
        taken = _ROWS_TAKE.get(name)
        if taken is not _ANY:
            value = setting(name, options, model)
            if value is not None and value is not False and (callable(value) or value != taken):
                return True
    return False


def sampling_settings(options: Mapping[str, Any], model: Model, end_ids: Sequence[int]) -> SamplingSettings:
    """Return the settings that options and the model's generation configuration ask for.

    Args:
        options: Options of `generate`, as `read_options` returns them.
    """
    sample = bool(setting("do_sample", options, model))
    temperature, top_p, top_k = (setting(name, options, model) for name in ("temperature", "top_p", "top_k"))
    return SamplingSettings(
        temperature=(1.0 if temperature is None else float(temperature)) if sample else 0.0,
        top_k=(50 if top_k is None else int(top_k)) if sample else 0,
        top_p=(1.0 if top_p is None else float(top_p)) if sample else 1.0,
        min_p=float(setting("min_p", options, model) or 0.0) if sample else 0.0,
        repetition_penalty=float(setting("repetition_penalty", options, model) or 1.0),
        min_new_tokens=int(setting("min_new_tokens", options, model) or 0),
        end_ids=tuple(end_ids),
    )


def sample(logits: torch.Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """Return the next token of each row; -1 for a sampled row in which no token has a probability above 0.

    Args:
        logits: `[R, V]`. Not changed.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # as transformers; also faster than bfloat16
    groups: dict[SamplingSettings, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.settings, []).append(index)
    chosen = [0] * len(rows)
    for settings, indices in groups.items():
        some = logits if len(indices) == len(rows) else logits[indices]
        tokens = _sample_group(some, settings, [rows[index] for index in indices])
        for index, token in zip(indices, tokens, strict=True):
            chosen[index] = token
    return chosen


def _sample_group(logits: torch.Tensor, settings: SamplingSettings, rows: Sequence[SampledRow]) -> list[int]:
    scores = penalized(logits, settings, rows)
    if not settings.temperature:
        return [int(each) for each in scores.argmax(-1).tolist()]
    scores = scores / settings.temperature
    draws = [draw(row.generator) for row in rows]
    tokens, weights = candidates(scores, settings)
    return [int(each) for each in _drawn(tokens, weights, to_device(torch.stack(draws), scores.device)).tolist()]


def draw(generator: torch.Generator) -> torch.Tensor:
    """Return the random number in [0, 1) that chooses the next token."""
    return torch.rand((), generator=generator, dtype=torch.float64)


def penalized(logits: torch.Tensor, settings: SamplingSettings, rows: Sequence[SampledRow]) -> torch.Tensor:
    """Return the logits after changes and the repetition penalty.

    End tokens are masked in rows with too few new tokens.
    """
    early = [index for index, row in enumerate(rows) if row.num_new < settings.min_new_tokens and settings.end_ids]
    if settings.repetition_penalty == 1.0 and not early and not settings.changes:
        return logits
    scores = logits.clone()
    if settings.changes:
        for row, row_scores in zip(rows, scores, strict=True):
            settings.changes.apply_(row_scores, row.answer)
    if settings.repetition_penalty != 1.0:
        for row, row_scores in zip(rows, scores, strict=True):
            found = row_scores[row.seen]  # equal tokens have equal scores, also below
            penalty = settings.repetition_penalty
            row_scores[row.seen] = torch.where(found < 0, found * penalty, found / penalty)
    if early:
        known = [each for each in settings.end_ids if each < scores.shape[1]]  # a tokenizer may have more tokens
        ends = torch.tensor(known, dtype=torch.long, device=scores.device)
        scores[torch.tensor(early, device=scores.device)[:, None], ends] = -torch.inf
    return scores


def candidates(scores: torch.Tensor, settings: SamplingSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens `[R, K]` that may be chosen, in order of their IDs, and their weights.

    A token that is as probable as the last one that top-k and top-p keep is kept, too. So the kept tokens do not
    depend on the order of equal scores, on rounding, or on other rows of a batch.

    Args:
        scores: Logits `[R, V]` over the temperature.
    """
    tokens, weights = _top_candidates(scores, settings)
    if settings.min_p:
        least = settings.min_p * weights.amax(-1, keepdim=True)
        weights = weights.masked_fill(weights < least * (1 - _ROUNDING), 0.0)
    return tokens, weights


def _top_candidates(scores: torch.Tensor, settings: SamplingSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens that top-k and top-p keep, and their weights."""
    size = scores.shape[1]
    every_token = torch.arange(size, device=scores.device).expand(scores.shape)
    if not settings.top_k and settings.top_p >= 1.0:
        return every_token, scores.softmax(-1)
    first = settings.top_k + 1 if settings.top_k else _FIRST_CANDIDATES
    values, tokens = scores.topk(min(size, first))
    weights = _kept_weights(scores, values, settings)
    if values.shape[1] < size and bool((weights[:, -1] > 0).any()):  # more tokens may be kept
        values, tokens = scores.sort(-1, descending=True)
        weights = _kept_weights(scores, values, settings)
        return every_token, torch.empty_like(weights).scatter_(-1, tokens, weights)
    tokens, order = tokens.sort(-1)
    return tokens, weights.gather(-1, order)


def _kept_weights(scores: torch.Tensor, values: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Return the weights `[R, K]` of tokens; 0 for those that top-k or top-p leaves out.

    Args:
        scores: `[R, V]`.
        values: The K largest scores of each row, in descending order.
    """
    if 0 < settings.top_k < values.shape[1]:
        values = _without_less_than(values, values[:, settings.top_k - 1 : settings.top_k])
    total = (values if settings.top_k else scores).logsumexp(-1, keepdim=True)
    weights = (values - total).exp()
    if settings.top_p >= 1.0:
        return weights
    num_kept = (weights.cumsum(-1) - weights < settings.top_p).sum(-1, keepdim=True).clamp(min=1)  # as in transformers
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
