"""Answers with transformers' `generate` the requests that a row of a shared forward pass cannot express.

These are beams, several sequences, assistants, `custom_generate`, the caller's logits processors, and outputs of steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from promptcache.runtime.completion import Completion, OwnKVUsage, Timing, completion
from promptcache.runtime.executor import Executor
from promptcache.runtime.generate import generate
from promptcache.runtime.hf.options import takes_history
from promptcache.runtime.history import OwnKV
from promptcache.runtime.request import Request


class TokenStreamer:
    """A streamer that passes generated tokens on. The prompt's tokens come first and are dropped."""

    def __init__(self, on_token: Callable[[int], object]) -> None:
        self._on_token = on_token
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """Receive the prompt's tokens or the next new tokens."""
        if self._prompt_seen:
            for token_id in value.reshape(-1).tolist():
                self._on_token(token_id)
        self._prompt_seen = True

    def end(self) -> None:
        """Called by `generate` at the end; does nothing, because the completion follows."""


def answer_by_transformers(
    request: Request,
    executor: Executor,
    on_token: Callable[[int], object] | None = None,
    is_cancelled: Callable[[], bool] | None = None,
) -> Completion:
    """Fetch, link and generate one request that has begun.

    Args:
        on_token: Gets each token of a request with one sequence, as it is generated.
        is_cancelled: The answer ends early once this is true.

    Raises:
        ModelChanged: The model was changed meanwhile. Nothing is kept.
    """
    planned = time.perf_counter()
    tokens = request.plan.tokens
    fetched = executor.fetch(part.encoding for part in tokens.parts)
    fetched_at = time.perf_counter()
    has_history = request.history and takes_history(request.options, executor.model)
    recalled = executor.recall(tokens, request.salt) if has_history else None
    linked = executor.link_fetched(tokens, fetched, recalled)
    linked_at = time.perf_counter()
    answer_ids: tuple[int, ...] = ()
    try:
        generated = generate(
            executor.model,
            linked,
            eos_ids=request.eos_ids,
            max_new_tokens=request.max_new_tokens,
            options=_observed(request.options, on_token, is_cancelled),
            logprobs=request.logprobs,
            matcher=request.matcher,
            changes=request.changes,
            num_given=request.num_given,
        )
        executor.model.check_unchanged()
        answer_ids = generated.sequences[0]
    finally:
        kept_bytes = 0 if recalled is None else executor.keep(recalled, answer_ids, own_kv(linked.cache))
    timing = Timing(
        plan_s=planned - request.started,
        fetch_s=fetched_at - planned,
        link_s=linked_at - fetched_at,
        prefill_s=generated.first_token_at - linked_at,
        decode_s=time.perf_counter() - generated.first_token_at,
    )
    own = OwnKVUsage(0 if recalled is None else recalled.num_found, linked.copied_bytes, kept_bytes)
    made = completion(request, fetched, own, generated.sequences, generated.ended[0], timing)
    return replace(made, logprobs=generated.logprobs, output=generated.output)


def _observed(
    options: Mapping[str, Any], on_token: Callable[[int], object] | None, is_cancelled: Callable[[], bool] | None
) -> Mapping[str, Any]:
    """Return options with a streamer that passes tokens on, and a criterion that stops a cancelled request."""
    if on_token is not None:
        options = {**options, "streamer": TokenStreamer(on_token)}
    if is_cancelled is None:
        return options

    def criterion(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), is_cancelled(), dtype=torch.bool, device=input_ids.device)

    return {**options, "stopping_criteria": [*(options.get("stopping_criteria") or ()), criterion]}


def own_kv(cache: Any) -> OwnKV:
    """Return the KV of the own tokens in the cache of a linked request."""
    layers = [layer.tail() for layer in cache.layers]
    stop = min(keys.shape[2] for keys, _ in layers)  # layers differ if a forward pass failed
    return tuple((keys[0, :, :stop], values[0, :, :stop]) for keys, values in layers)
