"""Jobs: requests on their way through a scheduler or a decoder."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch

from promptcache.answers import TokenLogprobs, TokenMatcher
from promptcache.decode.completion import Completion
from promptcache.decode.request import Request
from promptcache.diagnostics import InvalidGeneration
from promptcache.encode import Executor, Prepared
from promptcache.model import logits_processors, needs_processors, stopping_criteria
from promptcache.options import Options
from promptcache.rows import Row, tail_size

_log = logging.getLogger(__name__)

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
        seen_ids: Memory `[1, T]` for all tokens of prompt and answer, if a penalty, processor or criterion reads them.
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
    planned: float = field(default_factory=time.perf_counter)
    submitted: float = 0.0
    is_cancelled: bool = False
    preparing: Future[Prepared] | None = None
    missing_keys: frozenset[str] = frozenset()
    prepared: Prepared | None = None
    matcher: TokenMatcher | None = None
    row: Row | None = None
    seen_ids: torch.Tensor = field(default_factory=partial(torch.empty, (1, 0), dtype=torch.long))
    pending: deque[int] = field(default_factory=deque)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prepared_at: float = 0.0
    joined_at: float = 0.0
    first_token_at: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Maximum number of tokens of prompt and answer that the request adds."""
        return self.request.plan.num_new_tokens + self.request.max_new_tokens

    @property
    def seen(self) -> torch.Tensor:
        """All tokens of prompt and answer so far, a view `[1, T]`; empty if nothing reads them."""
        return self.seen_ids[:, : self.seen_ids.shape[1] - self.request.max_new_tokens + len(self.token_ids)]

    @property
    def reads_tokens(self) -> bool:
        """Whether a penalty, a processor or a criterion reads the tokens."""
        options = self.request.options
        penalties = options.repetition_penalty != 1.0 or options.presence_penalty or options.frequency_penalty
        return bool(self.criteria or self.processors or penalties)

    @property
    def reserved(self) -> int:
        """Capacity of the tail of the whole request, in tokens."""
        return tail_size(self.num_tokens)

    def tell(self, result: Completion | BaseException) -> None:
        """Pass the result to the listener. An error of the listener is logged. It affects no other job."""
        try:
            self.listener(result)
        except Exception:  # noqa: BLE001 - code of the caller
            _log.exception("a listener raised an error when its request ended")


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
    processors: Sequence[Callable[..., torch.Tensor]] = ()
    sampling = options
    if needs_processors(options, model):
        processors = logits_processors(options, model, request.plan.tokens.used_ids, request.max_new_tokens)
        sampling = Options(do_sample=options.is_sampled)
    return Job(
        request=request,
        listener=listener,
        sampling=sampling,
        processors=processors,
        generator=_generator(options),
        criteria=stopping_criteria(options, request.token_bytes),
        matcher=None if request.matcher is None else request.matcher.copy(),
    )


def _generator(options: Options) -> torch.Generator:
    """Return a random generator. Greedy decoding draws no seed, so it does not change torch's random state."""
    generator, seed = torch.Generator(), options.seed
    if seed is None and options.is_sampled:
        seed = int(torch.randint(2**62, ()))
    return generator if seed is None else generator.manual_seed(seed)
