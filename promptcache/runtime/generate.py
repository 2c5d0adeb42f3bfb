"""Generation from linked KV: transformers decodes, given new tokens, positions and a cache.

The contract with `generate` holds for transformers 5.4 to 5.23. It gets all own tokens of a request, with explicit
position IDs and a mask of ones, and prefills those that the cache does not count yet. Processors, penalties, criteria
and streamers get the whole prompt, tokens of cached modules included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from promptcache.runtime.finite import has_finite_logits
from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.runtime.hf.options import (
    REFUSALS,
    forced_options,
    is_refusal,
    number_of,
    pop_stopping_criteria,
    refused,
    setting,
)
from promptcache.runtime.hf.whole_prompt import WholePrompt
from promptcache.runtime.link import Linked
from promptcache.runtime.logit_changes import ChangeProcessor, LogitChanges
from promptcache.runtime.logprobs import LogprobRecorder, TokenLogprobs
from promptcache.runtime.token_grammars import TokenMatcher
from promptcache.runtime.token_masks import MaskProcessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Result of one call of transformers' `generate`.

    Attributes:
        sequences: New token IDs of each returned sequence, without padding.
        ended: For each sequence, whether an end token or a stopping criterion ended it, not the limit of new tokens.
        first_token_at: Time of the first new token, by `time.perf_counter`.
        output: The output object of transformers if the options ask for it. Its `sequences` hold new tokens only, and
            it has no cache.
        logprobs: Those of the only sequence, if they were asked for.
    """

    sequences: tuple[tuple[int, ...], ...]
    ended: tuple[bool, ...]
    first_token_at: float
    output: Any = None
    logprobs: tuple[TokenLogprobs, ...] | None = None


class StopRecorder:
    """The caller's stopping criteria as one; records the time of the first new token and where each row was stopped.

    A row is one of several sequences. A stopped one is padded until the last one is done. Padding and tokens of the
    model look the same in the result, so the position of the stop is recorded here. Assisted decoding adds several
    tokens at once; the criteria are asked behind each of them.
    """

    def __init__(self, criteria: Sequence[Callable[..., Any]], num_given: int) -> None:
        """Create a recorder for rows that begin with `num_given` tokens of the prompt."""
        self.first_token_at: float | None = None
        self._criteria = tuple(criteria)
        self._num_given = num_given
        self._asked_ids: torch.Tensor | None = None
        self._stops: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Apply every criterion to every row, behind each token that is new since the last call.

        transformers 5.4 also asks for drafts that may be rejected, so the tokens of the last call may be gone.
        """
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        stops = torch.zeros(len(input_ids), dtype=torch.long, device=input_ids.device)
        if not self._criteria:
            return stops > 0
        known = self._num_given
        if self._asked_ids is not None and self._stops is not None:
            size = min(self._asked_ids.shape[1], input_ids.shape[1])
            is_same = (self._asked_ids[:, :size] == input_ids[:, :size]).all(0)
            known = size if bool(is_same.all()) else int(is_same.int().argmin())
            stops = self._stops.masked_fill(self._stops > known, 0)
        for length in range(known + 1, input_ids.shape[1] + 1):
            now = self.is_stopped(input_ids[:, :length], scores, **kwargs)
            stops = stops.masked_fill((stops == 0) & now, length)
        self._stops, self._asked_ids = stops, input_ids
        return stops > 0

    def is_stopped(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return for each row whether a criterion stops it behind its last token."""
        stopped = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for criterion in self._criteria:
            stopped = stopped | criterion(input_ids, scores, **kwargs)
        return stopped

    def stops(self, num_rows: int) -> tuple[int, ...]:
        """Return the length at which each row was stopped, prompt tokens included; 0 if it was not."""
        return (0,) * num_rows if self._stops is None else tuple(self._stops.tolist())


@torch.no_grad()
def generate(
    model: Model,
    linked: Linked,
    *,
    eos_ids: Sequence[int],
    max_new_tokens: int,
    options: Mapping[str, Any],
    logprobs: int | None = None,
    matcher: TokenMatcher | None = None,
    changes: LogitChanges | None = None,
    num_given: int = 0,
) -> Generated:
    """Decode from a linked request.

    Args:
        model: The model that `linked` was linked for.
        linked: Its cache is consumed: it holds the generated tokens afterwards.
        eos_ids: Tokens that end an answer.
        max_new_tokens: At least 1.
        options: Other options of transformers' `generate`, as returned by `read_options`.
        logprobs: Number of the most probable tokens to keep for each token; None keeps no log-probabilities.
        matcher: The state of the output format at the start of the answer. Not changed.
        changes: Changes of logits before all other processing.
        num_given: How many of the last prompt tokens belong to the answer; penalties count them.
    """
    cache, num_before = linked.cache, linked.num_before
    if num_before:  # `generate` prefills only tokens behind those that the cache holds
        before = linked.positions.of_own_tokens(0, num_before)
        new_ids = token_tensor(linked.new_token_ids[:num_before], model.device)
        model.encode(new_ids, token_tensor(before.tolist(), model.device), cache)
    token_ids = token_tensor(linked.token_ids, model.device)  # `generate` prefills those that the cache does not hold
    num_held = cache.get_seq_length()
    num_seen = num_held + len(linked.missing) - num_before
    chosen = dict(options)
    if setting("temperature", options, model) == 0:  # greedy, as in a shared forward pass; transformers refuses it
        chosen |= {"do_sample": False, "temperature": 1.0}
    prompt = WholePrompt(linked.tokens, model)
    recorder = StopRecorder([*map(prompt.criterion, pop_stopping_criteria(chosen, model))], token_ids.shape[1])
    if chosen.get("streamer") is not None:
        drafts = any(setting(name, options, model) for name in ("assistant_model", "prompt_lookup_num_tokens"))
        chosen["streamer"] = prompt.streamer(chosen["streamer"], recorder.is_stopped if drafts else None)
    ends = end_ids(options, eos_ids)
    chosen["eos_token_id"] = list(ends) or None
    pad_id = chosen.get("pad_token_id")
    if pad_id is None:
        pad_id = chosen["pad_token_id"] = _pad_token_id(model, ends)
    has_beams = number_of("num_beams", options, model) > 1
    if has_beams and isinstance(pad_id, int):
        chosen["pad_token_id"] = model.num_known_tokens  # padding of beams differs from all tokens
    kept = None if logprobs is None else LogprobRecorder(logprobs)
    first: list[Callable[..., torch.Tensor]] = []
    if not setting("remove_invalid_values", options, model):
        first.append(partial(_check_finite, model))
    if changes:
        first.append(ChangeProcessor(changes, token_ids.shape[1] - num_given))
    if matcher is not None:
        first.append(MaskProcessor(matcher, token_ids.shape[1]))
    generator = prompt.generator(model.hf, first)
    hf = generator if kept is None else kept.watched(generator, cache)
    try:
        with model.without_autocast():
            made: Any = hf.generate(
                token_ids,
                position_ids=token_tensor(linked.position_ids, model.device),
                attention_mask=torch.ones((1, num_seen), dtype=torch.long, device=model.device),
                past_key_values=cache,
                max_new_tokens=max_new_tokens,
                stopping_criteria=[recorder],
                **{**chosen, **forced_options(model)},
            )
    except REFUSALS as error:
        if cache.get_seq_length() != num_held or not is_refusal(error):  # the model ran, or the caller's code
            raise
        raise refused(error) from error
    num_given = token_ids.shape[1]
    new_ids = (made if isinstance(made, torch.Tensor) else made.sequences)[:, num_given:]
    if has_beams:
        is_padding = (new_ids >= model.num_known_tokens) | (new_ids < 0)  # -1 without an end token
        new_ids = new_ids.masked_fill(is_padding, pad_id) if is_padding.any() else new_ids
        whole = torch.cat([token_ids.expand(len(new_ids), -1), new_ids], dim=1)
        is_stopped = is_padding.any(1) | recorder.is_stopped(whole, None)  # the last token may be the one that stops
        stops = torch.where(is_stopped, (~is_padding).sum(1), 0).tolist()
    else:
        stops = [stop - num_given for stop in recorder.stops(len(new_ids))]
    cut = [_cut(row, ends, stop) for row, stop in zip(new_ids.tolist(), stops, strict=True)]
    return Generated(
        sequences=tuple(sequence for sequence, _ in cut),
        ended=tuple(ended or len(sequence) < max_new_tokens for sequence, ended in cut),
        first_token_at=recorder.first_token_at or time.perf_counter(),  # `custom_generate` may call no criterion
        output=None if isinstance(made, torch.Tensor) else _without_cache(made, new_ids),
        logprobs=None if kept is None else kept.tokens(new_ids),
    )


def _check_finite(model: Model, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Logits processor: raise `NotFinite` for a row of logits with NaN or infinity; minus infinity is allowed."""
    if not bool(has_finite_logits(scores).all()):
        raise model.not_finite("the logits of this request")
    return scores


def _without_cache(output: Any, new_ids: torch.Tensor) -> Any:
    return type(output)(**{**output, "sequences": new_ids, "past_key_values": None})


@torch.no_grad()
def request_logits(model: Model, linked: Linked) -> torch.Tensor:
    """Return the logits `[N, V]` of a linked request's new tokens, in position order. Consumes its cache."""
    assert len(linked.missing) == len(linked.token_ids), "only computed tokens have logits"
    token_ids = token_tensor(linked.token_ids, model.device)
    return model.forward(token_ids, token_tensor(linked.position_ids, model.device), linked.cache)[0]


def end_ids(options: Mapping[str, Any], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens that end an answer: those of the options, else `eos_ids`."""
    named = options.get("eos_token_id", eos_ids)
    if named is None:
        return ()
    return (named,) if isinstance(named, int) else tuple(named)


def _pad_token_id(model: Model, ends: Sequence[int]) -> int:
    config: Any = model.hf.generation_config
    if config is not None and config.pad_token_id is not None:
        return int(config.pad_token_id)
    return next(iter(ends), 0)


def _cut(row: list[int], ends: tuple[int, ...], stop: int) -> tuple[tuple[int, ...], bool]:
    """Cut a row after its first end token, or where it was stopped. The rest is padding.

    Args:
        stop: Length at which a criterion stopped the row; 0 or less if none did.

    Returns:
        The row, and whether an end token or a criterion ended it.
    """
    found = [index + 1 for index, token_id in enumerate(row) if token_id in ends][:1]
    found += [stop] if 0 < stop <= len(row) else []
    return tuple(row[: min(found)]) if found else tuple(row), bool(found)
