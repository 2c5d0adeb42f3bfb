"""Answers planned requests: fetch, link, generate, and report usage and timing.

This file works on plans. It reads no XML.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from promptcache.kv import Codec, Tier
from promptcache.layout import Plan
from promptcache.runtime.completion import Completion, FinishReason, KVSource, ModuleUsage, Timing, Usage
from promptcache.runtime.executor import Executor, Fetched
from promptcache.runtime.generate import Generated, generate, generate_together
from promptcache.runtime.hf.options import sees_padding, takes_history
from promptcache.runtime.history import OwnKV
from promptcache.runtime.link import link_batch
from promptcache.runtime.promotion import uses_promotion
from promptcache.runtime.stream import TokenQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A planned prompt and the settings of its generation.

    Attributes:
        eos_ids: Tokens that end the answer.
        options: Options of transformers' `generate`.
        started: Time of the call, by `time.perf_counter`.
        text: Turns token IDs into text without control tokens.
        logprobs: Number of the most probable tokens to report for each token; None reports no log-probabilities.
        salt: Requests share history only with requests of the same salt.
    """

    plan: Plan
    eos_ids: Sequence[int]
    max_new_tokens: int
    options: Mapping[str, Any]
    started: float
    text: Callable[[Sequence[int]], str]
    logprobs: int | None = None
    salt: str | None = None


def streaming(request: Request, queue: TokenQueue) -> Request:
    """Return a request that puts its tokens into `queue` and stops once the reader has closed it."""
    criteria = [*(request.options.get("stopping_criteria") or ()), queue.should_stop]
    return replace(request, options={**request.options, "streamer": queue, "stopping_criteria": criteria})


def answer(request: Request, executor: Executor) -> Completion:
    """Fetch, link and generate one planned request."""
    planned = time.perf_counter()
    tokens = request.plan.tokens
    fetched = executor.fetch(part.encoding for part in tokens.parts)
    fetched_at = time.perf_counter()
    recalled = executor.recall(tokens, request.salt) if takes_history(request.options, executor.model) else None
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
    return _with_logprobs(made, generated, 0)


def answer_batch(requests: Sequence[Request], executor: Executor, batch_bytes: int) -> tuple[Completion, ...]:
    """Answer planned requests together, in batches whose own tokens take at most `batch_bytes` of KV.

    A model that links by concatenation answers them one after another. The timings of a completion are those of its
    batch.

    Args:
        requests: All have the same options.
    """
    model = executor.model
    if not model.linking.takes_rows:
        return tuple(answer(request, executor) for request in requests)
    answers: list[Completion] = []
    padded = not (requests and sees_padding(requests[0].options, model))
    for batch in _batches(requests, model.shape.token_bytes, batch_bytes, padded):
        answers.extend(_answer_together(batch, executor))
    return tuple(answers)


def _batches(
    requests: Sequence[Request], token_bytes: int, batch_bytes: int, padded: bool
) -> Iterator[tuple[Request, ...]]:
    """Cut requests, in order, into batches whose padded rows stay within `batch_bytes`.

    One request always fits. All rows of a batch generate at most the same number of tokens: near the end of the
    context a request may have room for fewer tokens than another.

    Args:
        padded: Whether shorter rows may be padded. If not, a batch has rows of equal length only.
    """
    batch: list[Request] = []
    longest = 0
    for request in requests:
        own = request.plan.num_new_tokens + request.max_new_tokens
        alike = not batch or (request.max_new_tokens == batch[0].max_new_tokens and (padded or own == longest))
        if batch and not (alike and (len(batch) + 1) * max(longest, own) * token_bytes <= batch_bytes):
            yield tuple(batch)
            batch, longest = [], 0
        batch.append(request)
        longest = max(longest, own)
    if batch:
        yield tuple(batch)


def _answer_together(batch: tuple[Request, ...], executor: Executor) -> Iterator[Completion]:
    planned = time.perf_counter()
    rows_of_tokens = [request.plan.tokens for request in batch]
    fetched = [executor.fetch(part.encoding for part in tokens.parts) for tokens in rows_of_tokens]
    fetched_at = time.perf_counter()
    runs = {encoding: run for each in fetched for encoding, run in each.runs.items()}
    recalled = [executor.recall(each.plan.tokens, each.salt, only_prefix=True) for each in batch]
    known = [each for each in recalled if each is not None]
    linked = link_batch(rows_of_tokens, runs, executor.model, executor.pool, known or None)
    linked_at = time.perf_counter()
    made = generate_together(
        executor.model,
        linked,
        eos_ids=batch[0].eos_ids,
        max_new_tokens=batch[0].max_new_tokens,
        options=batch[0].options,
        logprobs=batch[0].logprobs,
    )
    done = time.perf_counter()
    rows = zip(batch, fetched, recalled, linked.copied_bytes, made.sequences, made.ended, strict=True)
    for index, (request, each, found, copied_bytes, sequence, ended) in enumerate(rows):
        own = own_kv(linked.cache, index, linked.num_pads[index])
        kept_bytes = executor.keep(found, sequence, own)
        timing = Timing(
            plan_s=planned - request.started,
            fetch_s=fetched_at - planned,
            link_s=linked_at - fetched_at,
            prefill_s=made.first_token_at - linked_at,
            decode_s=done - made.first_token_at,
        )
        used = OwnKVUsage(0 if found is None else found.num_found, copied_bytes, kept_bytes)
        output = made.row(index, request.plan.num_new_tokens - used.num_found)
        yield _with_logprobs(completion(request, each, used, (sequence,), ended, timing, output), made, index)


def _with_logprobs(completion: Completion, generated: Generated, row: int) -> Completion:
    return completion if generated.logprobs is None else replace(completion, logprobs=generated.logprobs[row])


class OwnKVUsage(NamedTuple):
    """What history found, and the bytes that were copied to link a request and to keep its own tokens."""

    num_found: int
    copied_bytes: int
    kept_bytes: int


def own_kv(cache: Any, row: int = 0, pad: int = 0) -> OwnKV:
    """Return the KV of the own tokens in one row of a cache that links in segments.

    Args:
        pad: Number of padding tokens in front of the row.
    """
    layers = [layer.tail() for layer in cache.layers]
    stop = min(keys.shape[2] for keys, _ in layers)  # layers differ if a forward pass failed
    return tuple((keys[row, :, pad:stop], values[row, :, pad:stop]) if stop else _NO_KV for keys, values in layers)


_NO_KV = (torch.empty(0, 0, 0), torch.empty(0, 0, 0))


def completion(
    request: Request,
    fetched: Fetched,
    own: OwnKVUsage,
    sequences: Sequence[tuple[int, ...]],
    ended: bool,
    timing: Timing,
    output: Any,
) -> Completion:
    first, *others = sequences
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
        promoted=uses_promotion(request.plan.selection),
    )
    return Completion(
        text=request.text(first),
        token_ids=first,
        finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
        level=request.plan.level,
        repair=str(request.plan.repair),
        lossy=any(Codec(encoding.codec).lossy for encoding in fetched.runs),
        usage=usage,
        timing=timing,
        plan=request.plan,
        alternatives=tuple(request.text(sequence) for sequence in others),
        output=output,
    )


def _module_usage(plan: Plan, fetched: Fetched, num_found: int) -> tuple[ModuleUsage, ...]:
    tokens: dict[str, int] = {}
    tiers: dict[str, set[Tier | None]] = {}
    for reuse in plan.reuse:
        module = plan.layout.runs[reuse.run].module
        tokens[module] = tokens.get(module, 0) + reuse.part.num_tokens
        tiers.setdefault(module, set()).add(fetched.tiers.get(reuse.part.encoding))
    modules = [_module(module, count, tiers[module]) for module, count in tokens.items()]
    if num_found:
        modules.append(ModuleUsage(module="", source=KVSource.HISTORY, num_tokens=num_found, tier=Tier.MEMORY))
    return tuple(modules)


def _module(module: str, num_tokens: int, tiers: set[Tier | None]) -> ModuleUsage:
    if None in tiers:
        return ModuleUsage(module=module, source=KVSource.MISS, num_tokens=num_tokens, tier=None)
    slowest = next(tier for tier in reversed(Tier) if tier in tiers)
    source = KVSource.HIT if slowest is Tier.MEMORY else KVSource.LOAD
    return ModuleUsage(module=module, source=source, num_tokens=num_tokens, tier=slowest)
