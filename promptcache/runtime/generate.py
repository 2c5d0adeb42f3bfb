"""Generation from linked KV: transformers decodes, we hand it new tokens, positions and a cache.

Comes in: a linked request and whatever `transformers` `generate` understands. Goes out: token IDs and the moment of the
first one. The contract with `generate` (new IDs only, explicit positions, a mask of ones over cached and new tokens)
holds for transformers 5.4 to 5.23.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from promptcache.diagnostics import PromptCacheError
from promptcache.runtime.batch import LinkedBatch
from promptcache.runtime.concatenated import position_mask
from promptcache.runtime.hf.model import Linking, Model, token_tensor
from promptcache.runtime.link import Linked

_OURS = ("input_ids", "inputs", "inputs_embeds", "position_ids", "attention_mask", "past_key_values", "use_cache")


class InvalidGeneration(PromptCacheError, TypeError):
    """An option of `generate` that this library sets itself or cannot honour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What came out: new token IDs of each returned sequence (padding cut off), and when the first token was there."""

    sequences: tuple[tuple[int, ...], ...]
    first_token_at: float


class FirstTokenClock:
    """A stopping criterion that stops nothing: it notes when the first new token is there (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.first_token_at: float | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Note the time once."""
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def check_generation(options: Mapping[str, Any]) -> None:
    """Refuse options that this library sets itself.

    Raises:
        InvalidGeneration: Names the option and what to use instead.
    """
    for name in _OURS:
        if name in options:
            raise InvalidGeneration(f"generate() sets '{name}' itself; the prompt decides it")
    for name in ("max_length", "min_length"):
        if name in options:
            mend = name.replace("length", "new_tokens")
            raise InvalidGeneration(f"'{name}' would count cached tokens or not, by accident; use '{mend}'")
    if "prefill_chunk_size" in options:
        raise InvalidGeneration("'prefill_chunk_size' does not work with explicit positions (transformers 5.23)")


def check_batch_generation(options: Mapping[str, Any]) -> None:
    """As `check_generation`, and refuse what makes several rows of one prompt.

    Raises:
        InvalidGeneration: Names the option.
    """
    check_generation(options)
    for name in ("num_beams", "num_return_sequences"):
        if options.get(name, 1) != 1:
            raise InvalidGeneration(f"'{name}' works for single prompts only; use generate() for each")
    if "streamer" in options:
        raise InvalidGeneration("a batch cannot be streamed (transformers streams one sequence); use stream() for each")


@torch.no_grad()
def generate(
    model: Model, linked: Linked, *, eos_ids: Sequence[int], max_new_tokens: int, options: Mapping[str, Any]
) -> Generated:
    """Decode from a linked request.

    Args:
        model: The one that `linked` was linked for.
        linked: Its cache is used up: it holds the generated tokens afterwards.
        eos_ids: Tokens that end an answer.
        max_new_tokens: At least 1.
        options: Anything else that `transformers` `generate` takes; checked by `check_generation`.
    """
    start = _prefill_for_plain_cache(model, linked, _num_rows(model, options))
    return _decode(
        model,
        linked.cache,
        token_tensor(linked.token_ids[start:], model.device),
        token_tensor(linked.position_ids[start:], model.device),
        linked.timeline.num_cached + len(linked.token_ids),
        eos_ids,
        max_new_tokens,
        dict(options),
    )


@torch.no_grad()
def generate_together(
    model: Model, linked: LinkedBatch, *, eos_ids: Sequence[int], max_new_tokens: int, options: Mapping[str, Any]
) -> Generated:
    """Decode from a batch of linked requests: as `generate`, one sequence for each row."""
    seen = linked.num_cached + linked.token_ids.shape[1]
    return _decode(
        model, linked.cache, linked.token_ids, linked.position_ids, seen, eos_ids, max_new_tokens, dict(options)
    )


def _decode(
    model: Model,
    cache: Any,
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
    num_seen: int,
    eos_ids: Sequence[int],
    max_new_tokens: int,
    options: dict[str, Any],
) -> Generated:
    """Call transformers' `generate` with new tokens `[B, N]`; `num_seen` counts them and what the cache holds."""
    clock = FirstTokenClock()
    criteria = [*options.pop("stopping_criteria", ()), clock]
    ends = end_ids(options, eos_ids)
    options["eos_token_id"] = list(ends) or None
    if options.get("pad_token_id") is None:
        options["pad_token_id"] = _pad_token_id(model, ends)
    output: Any = model.hf.generate(
        token_ids,
        position_ids=position_ids,
        attention_mask=torch.ones((len(token_ids), num_seen), dtype=torch.long, device=model.device),
        past_key_values=cache,
        max_new_tokens=max_new_tokens,
        stopping_criteria=criteria,
        **options,
    )
    rows = (output if isinstance(output, torch.Tensor) else output.sequences)[:, token_ids.shape[1] :].tolist()
    assert clock.first_token_at is not None, "generate returned at least one token"
    return Generated(
        sequences=tuple(_without_padding(row, ends) for row in rows),
        first_token_at=clock.first_token_at,
    )


@torch.no_grad()
def request_logits(model: Model, linked: Linked) -> torch.Tensor:
    """Return the logits `[N, V]` of the new tokens of a linked request, in position order; uses its cache up."""
    mask = None
    if model.linking is Linking.CONCATENATED:
        mask = position_mask(model, linked.timeline, len(linked.token_ids))
    token_ids = token_tensor(linked.token_ids, model.device)
    return model.forward(token_ids, token_tensor(linked.position_ids, model.device), linked.cache, mask)[0]


def _prefill_for_plain_cache(model: Model, linked: Linked, num_rows: int) -> int:
    """Prefill all new tokens but the last under a mask by position (`generate` takes no such mask); return how many."""
    if model.linking is Linking.SEGMENTED:
        return 0
    before = len(linked.token_ids) - 1
    if before:
        token_ids = token_tensor(linked.token_ids[:before], model.device)
        positions = token_tensor(linked.position_ids[:before], model.device)
        model.encode(token_ids, positions, linked.cache, position_mask(model, linked.timeline, before))
    if num_rows > 1:
        linked.cache.batch_repeat_interleave(num_rows)
    return before


def _num_rows(model: Model, options: Mapping[str, Any]) -> int:
    """How many rows `generate` makes of one prompt: beams, or sequences to return."""
    configs = (options.get("generation_config"), model.hf.generation_config)

    def setting(name: str) -> int:
        values = (options.get(name), *(getattr(config, name, None) for config in configs))
        return next((int(value) for value in values if value is not None), 1)

    return max(setting("num_beams"), setting("num_return_sequences"))


def end_ids(options: Mapping[str, Any], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens that end an answer: those that the options name, else `eos_ids`."""
    named = options.get("eos_token_id", eos_ids)
    if named is None:
        return ()
    return (named,) if isinstance(named, int) else tuple(named)


def _pad_token_id(model: Model, ends: Sequence[int]) -> int:
    config: Any = model.hf.generation_config
    if config is not None and config.pad_token_id is not None:
        return int(config.pad_token_id)
    return next(iter(ends), 0)


def _without_padding(row: list[int], ends: tuple[int, ...]) -> tuple[int, ...]:
    """Cut a row behind its first end-of-sequence token: what follows is padding to the longest row."""
    stop = next((index + 1 for index, token_id in enumerate(row) if token_id in ends), len(row))
    return tuple(row[:stop])
