"""Jobs: requests on their way through a scheduler or a decoder, up to their completions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch

from promptcache.answers import TokenLogprobs, TokenMatcher, whole_text
from promptcache.decode.completion import Completion, FinishReason, KVSource, ModuleUsage, Timing, Usage
from promptcache.decode.request import Request
from promptcache.diagnostics import InvalidGeneration
from promptcache.encode import Executor, Prepared
from promptcache.kv import Codec, Tier
from promptcache.layout import Origin, Piece
from promptcache.model import logits_processors, stopping_criteria
from promptcache.options import Options
from promptcache.rows import Recalled

Listener: TypeAlias = Callable[[int | TokenLogprobs | Completion | BaseException], None]
"""Gets each generated token, then the completion or an error. It must not block.

A token comes with its log-probabilities if the request has them.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request that is being answered.

    Attributes:
        sampling: How the next token is chosen: from the scores that the processors return, if there are any.
        processors: Logits processors of transformers, if an option needs them.
        num_tokens: Maximum number of tokens of prompt and answer that the request adds.
        reads_tokens: Whether a penalty, a processor or a criterion reads the tokens.
        seen_ids: Memory `[1, T]` for all tokens of prompt and answer, if it reads them.
        planned, submitted: When the job was made, and when a scheduler got it, by `time.perf_counter`.
        pending: Prompt tokens that are not computed yet.
        is_cancelled: Set by any thread. The scheduler reads it between steps, and threads that encode between passes.
        preparing: Its plan with KV, while another thread reads or encodes it.
        missing_keys: Keys of the KV that was not in memory at the last check.
        matcher: The state of the answer in its format; None if it may be any text.
    """

    request: Request
    listener: Listener
    sampling: Options
    processors: Sequence[Callable[..., torch.Tensor]]
    generator: torch.Generator
    criteria: Sequence[Callable[..., Any]]
    num_tokens: int
    reads_tokens: bool
    matcher: TokenMatcher | None
    planned: float = field(default_factory=time.perf_counter)
    submitted: float = 0.0
    is_cancelled: bool = False
    preparing: Future[Prepared] | None = None
    missing_keys: frozenset[str] = frozenset()
    prepared: Prepared | None = None
    seen_ids: torch.Tensor = field(default_factory=partial(torch.empty, (1, 0), dtype=torch.long))
    pending: deque[int] = field(default_factory=deque)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prepared_at: float = 0.0
    joined_at: float = 0.0
    first_token_at: float = 0.0

    @property
    def seen(self) -> torch.Tensor:
        """All tokens of prompt and answer so far, a view `[1, T]`; empty if nothing reads them."""
        return self.seen_ids[:, : self.seen_ids.shape[1] - self.request.max_new_tokens + len(self.token_ids)]


def job_of(request: Request, listener: Listener, executor: Executor) -> Job:
    """Return the job of a request with one sequence.

    Raises:
        InvalidGeneration: It has several sequences, or transformers does not take its options.
    """
    options, model = request.options, executor.model
    if options.num_return_sequences > 1:
        raise InvalidGeneration(
            "'num_return_sequences' above 1 works in generate() and generate_batch(); elsewhere ask several times"
        )
    processors = logits_processors(options, model, request.plan.tokens, request.max_new_tokens)
    sampling = Options(do_sample=options.is_sampled) if processors else options
    generator = torch.Generator()
    if options.seed is not None:
        generator.manual_seed(options.seed)
    elif options.is_sampled:  # greedy decoding draws no seed, so it does not change torch's random state
        generator.manual_seed(int(torch.randint(2**62, ())))
    criteria = stopping_criteria(options, request.token_bytes)
    penalties = options.repetition_penalty != 1.0 or options.presence_penalty or options.frequency_penalty
    return Job(
        request=request,
        listener=listener,
        sampling=sampling,
        processors=processors,
        generator=generator,
        criteria=criteria,
        num_tokens=request.plan.num_new_tokens + request.max_new_tokens,
        reads_tokens=bool(criteria or processors or penalties),
        matcher=None if request.matcher is None else request.matcher.copy(),
    )


def completion_of(job: Job, *, ended: bool, ended_at: float, copied_bytes: int, kept_bytes: int) -> Completion:
    """Return the result of a job for the generated tokens.

    Args:
        ended: Whether an end token or a criterion ended the answer, and not its limit.
        ended_at: Time of the last token, by `time.perf_counter`.
    """
    request, prepared, token_ids = job.request, job.prepared, tuple(job.token_ids)
    assert prepared is not None, "a running job is prepared"
    plan, fetched = prepared.plan, prepared.fetched
    prepare_s = prepared.refine_s + prepared.fetch_s + fetched.encode_s + prepared.choose_s
    parts = request.reader.parts(whole_text(request.text, token_ids))
    num_found = 0 if prepared.recalled is None else prepared.recalled.num_found
    return Completion(
        text=parts.text,
        reasoning=parts.reasoning,
        tool_calls=parts.calls,
        token_ids=token_ids,
        finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
        level=plan.level,
        repair=str(plan.repair),
        lossy=any(Codec(encoding.codec).lossy for encoding in fetched.kv_of),
        usage=Usage(
            num_reused_tokens=plan.num_reused_tokens,
            num_history_tokens=num_found,
            num_new_tokens=plan.num_new_tokens - num_found,
            num_repaired_tokens=sum(_num_computed(piece, prepared.recalled) for piece in plan.repaired),
            num_generated_tokens=len(token_ids),
            num_encoded_tokens=fetched.num_encoded_tokens,
            copied_bytes=copied_bytes,
            kept_bytes=kept_bytes,
            moved_bytes=fetched.moved_bytes,
            faults=fetched.faults,
            modules=_module_usage(prepared),
            promoted=plan.level is not request.plan.level,
        ),
        timing=Timing(
            plan_s=job.planned - request.started,
            wait_s=max(0.0, job.prepared_at - job.submitted - prepare_s),
            refine_s=prepared.refine_s,
            fetch_s=prepared.fetch_s,
            encode_s=fetched.encode_s,
            choose_s=prepared.choose_s,
            link_s=job.joined_at - job.prepared_at,
            prefill_s=job.first_token_at - job.joined_at,
            decode_s=ended_at - job.first_token_at,
        ),
        plan=plan,
        logprobs=None if request.options.logprobs is None else tuple(job.logprobs),
        output_format=request.options.output,
    )


def _module_usage(prepared: Prepared) -> tuple[ModuleUsage, ...]:
    """Return where reused KV came from: that of the cached text of each module, and at the end that of other tokens."""
    stored: dict[str, list[tuple[int, Tier | None]]] = {}
    recalled = dict[str, int]()
    for piece in prepared.plan.pieces:
        if piece.source is not None:
            tier = prepared.fetched.tiers.get(piece.source.encoding)
            stored.setdefault(piece.module, []).append((len(piece.token_ids), tier))
        elif num_found := len(piece.token_ids) - _num_computed(piece, prepared.recalled):
            module = piece.module if piece.origin is Origin.REPAIRED else ""
            recalled[module] = recalled.get(module, 0) + num_found
    found: list[ModuleUsage] = []
    for module, parts in stored.items():
        tiers = {tier for _, tier in parts}
        slowest = None if None in tiers else next(tier for tier in reversed(Tier) if tier in tiers)
        source = {None: KVSource.MISS, Tier.MEMORY: KVSource.HIT}.get(slowest, KVSource.LOAD)
        num_tokens = sum(number for number, _ in parts)
        found.append(ModuleUsage(module=module, source=source, num_tokens=num_tokens, tier=slowest))
    for module, number in sorted(recalled.items(), key=lambda each: not each[0]):  # "" is the last one
        found.append(ModuleUsage(module=module, source=KVSource.HISTORY, num_tokens=number, tier=Tier.MEMORY))
    return tuple(found)


def _num_computed(piece: Piece, recalled: Recalled | None) -> int:
    """Return how many tokens of a new piece history does not have."""
    stretches = () if recalled is None else recalled.stretches
    overlaps = (min(piece.stop, each.first + each.num_found) - max(piece.start, each.first) for each in stretches)
    return len(piece.token_ids) - sum(max(0, overlap) for overlap in overlaps)
