"""Answers planned requests: fetch, link, generate, and report usage and timing.

This file works on plans. It reads no XML.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from promptcache.kv import Codec, Tier
from promptcache.layout import Plan
from promptcache.runtime.completion import Completion, FinishReason, KVSource, ModuleUsage, Timing, Usage
from promptcache.runtime.executor import Executor, Fetched
from promptcache.runtime.generate import generate
from promptcache.runtime.hf.options import takes_history
from promptcache.runtime.history import OwnKV
from promptcache.runtime.promotion import uses_promotion
from promptcache.runtime.reasoning import split_answer
from promptcache.runtime.request import Request
from promptcache.runtime.stream import TokenQueue
from promptcache.runtime.text import whole_text


def streaming(request: Request, queue: TokenQueue) -> Request:
    """Return a request that puts its tokens into `queue` and stops once the reader has closed it."""
    criteria = [*(request.options.get("stopping_criteria") or ()), queue.should_stop]
    return replace(request, options={**request.options, "streamer": queue, "stopping_criteria": criteria})


MAX_LOST_TOKENS = 256
"""Tokens of history that a request may compute again to use promoted KV. History belongs to the KV below it."""


def begun(request: Request, executor: Executor) -> Request:
    """Return the request with the plan that is used, and note it.

    This is its exact plan if the combination that it reuses is promoted. A request that would lose much history stays
    as it is, such as the next turn of a long conversation that began before the promotion.
    """
    used = _with_promoted(request, executor)
    if used.note is not None:
        used.note(used.plan)
    return used


def _with_promoted(request: Request, executor: Executor) -> Request:
    plan = None if request.exact is None else request.exact(request.plan, request.salt)
    if plan is None:
        return request
    if request.history and plan.num_new_tokens > MAX_LOST_TOKENS:
        state = executor.follow()
        known, left = (executor.recall(each.tokens, request.salt, state) for each in (request.plan, plan))
        if known is not None and left is not None and known.num_found > left.num_found + MAX_LOST_TOKENS:
            return request
    return replace(request, plan=plan, promoted=True)


def answer(request: Request, executor: Executor) -> Completion:
    """Fetch, link and generate one planned request."""
    with executor.activity:
        return _answer(begun(request, executor), executor)


def _answer(request: Request, executor: Executor) -> Completion:
    planned = time.perf_counter()
    tokens = request.plan.tokens
    fetched = executor.fetch(part.encoding for part in tokens.parts)
    fetched_at = time.perf_counter()
    has_history = request.history and takes_history(request.options, executor.model)
    recalled = executor.recall(tokens, request.salt, fetched.state) if has_history else None
    linked = executor.link_fetched(tokens, fetched, recalled)
    linked_at = time.perf_counter()
    answer_ids: tuple[int, ...] = ()
    try:
        generated = generate(
            executor.model,
            linked,
            eos_ids=request.eos_ids,
            max_new_tokens=request.max_new_tokens,
            options=request.options,
            logprobs=request.logprobs,
        )
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
    made = completion(request, fetched, own, generated.sequences, generated.ended[0], timing, generated.output)
    return replace(made, logprobs=generated.logprobs)


class OwnKVUsage(NamedTuple):
    """What history found, and the bytes that were copied to link a request and to keep its own tokens."""

    num_found: int
    copied_bytes: int
    kept_bytes: int


def own_kv(cache: Any) -> OwnKV:
    """Return the KV of the own tokens in a cache that links in segments."""
    layers = [layer.tail() for layer in cache.layers]
    stop = min(keys.shape[2] for keys, _ in layers)  # layers differ if a forward pass failed
    return tuple((keys[0, :, :stop], values[0, :, :stop]) for keys, values in layers)


def completion(
    request: Request,
    fetched: Fetched,
    own: OwnKVUsage,
    sequences: Sequence[tuple[int, ...]],
    ended: bool,
    timing: Timing,
    output: Any,
) -> Completion:
    """Return the result of a request; `sequences` are generated token IDs, the first is the answer."""
    (reasoning, text), *others = (
        split_answer(whole_text(request.text, each), request.reasoning_tags, is_open=request.reasoning_is_open)
        for each in sequences
    )
    usage = Usage(
        num_reused_tokens=request.plan.num_reused_tokens,
        num_history_tokens=own.num_found,
        num_new_tokens=request.plan.num_new_tokens - own.num_found,
        num_repaired_tokens=request.plan.num_repaired_tokens,
        num_generated_tokens=sum(len(sequence) for sequence in sequences),
        num_encoded_tokens=fetched.num_encoded_tokens,
        copied_bytes=own.copied_bytes,
        kept_bytes=own.kept_bytes,
        moved_bytes=fetched.moved_bytes,
        faults=fetched.faults,
        modules=_module_usage(request.plan, fetched, own.num_found),
        promoted=request.promoted or uses_promotion(request.plan.selection),
    )
    return Completion(
        text=text,
        reasoning=reasoning,
        token_ids=sequences[0],
        finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
        level=request.plan.level,
        repair=str(request.plan.repair),
        lossy=any(Codec(encoding.codec).lossy for encoding in fetched.runs),
        usage=usage,
        timing=timing,
        plan=request.plan,
        alternatives=tuple(each for _, each in others),
        output=output,
    )


def _module_usage(plan: Plan, fetched: Fetched, num_found: int) -> tuple[ModuleUsage, ...]:
    tiers: dict[str, set[Tier | None]] = {}
    for reuse in plan.reuse:
        module = plan.layout.runs[reuse.run].module
        tiers.setdefault(module, set()).add(fetched.tiers.get(reuse.part.encoding))
    modules = [_module(module, count, tiers[module]) for module, count in plan.num_reused_tokens_by_module.items()]
    if num_found:
        modules.append(ModuleUsage(module="", source=KVSource.HISTORY, num_tokens=num_found, tier=Tier.MEMORY))
    return tuple(modules)


def _module(module: str, num_tokens: int, tiers: set[Tier | None]) -> ModuleUsage:
    if None in tiers:
        return ModuleUsage(module=module, source=KVSource.MISS, num_tokens=num_tokens, tier=None)
    slowest = next(tier for tier in reversed(Tier) if tier in tiers)
    source = KVSource.HIT if slowest is Tier.MEMORY else KVSource.LOAD
    return ModuleUsage(module=module, source=source, num_tokens=num_tokens, tier=slowest)
