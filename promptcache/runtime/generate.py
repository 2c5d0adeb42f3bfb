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
    max_new_tokens: int


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
    options = dict(options)
    clock = FirstTokenClock()
    criteria = [*options.pop("stopping_criteria", ()), clock]
    options.setdefault("eos_token_id", list(eos_ids) or None)
    if options.get("pad_token_id") is None:
        options["pad_token_id"] = _pad_token_id(model, options["eos_token_id"])
    start = _prefill_for_plain_cache(model, linked, _num_rows(model, options))
    token_ids, positions = linked.token_ids[start:], linked.position_ids[start:]
    seen = linked.timeline.num_cached + len(linked.token_ids)
    output: Any = model.hf.generate(
        token_tensor(token_ids, model.device),
        position_ids=token_tensor(positions, model.device),
        attention_mask=torch.ones((1, seen), dtype=torch.long, device=model.device),
        past_key_values=linked.cache,
        max_new_tokens=max_new_tokens,
        stopping_criteria=criteria,
        **options,
    )
    rows = (output if isinstance(output, torch.Tensor) else output.sequences)[:, len(token_ids) :].tolist()
    assert clock.first_token_at is not None, "generate returned at least one token"
    ends = _as_tuple(options["eos_token_id"])
    return Generated(
        sequences=tuple(_without_padding(row, ends) for row in rows),
        first_token_at=clock.first_token_at,
        max_new_tokens=max_new_tokens,
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


def _pad_token_id(model: Model, eos: Any) -> int:
    config: Any = model.hf.generation_config
    if config is not None and config.pad_token_id is not None:
        return int(config.pad_token_id)
    return next(iter(_as_tuple(eos)), 0)


def _as_tuple(eos: Any) -> tuple[int, ...]:
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _without_padding(row: list[int], ends: tuple[int, ...]) -> tuple[int, ...]:
    """Cut a row behind its first end-of-sequence token: what follows is padding to the longest row."""
    stop = next((index + 1 for index, token_id in enumerate(row) if token_id in ends), len(row))
    return tuple(row[:stop])
