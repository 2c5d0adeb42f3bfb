"""Requests: a planned prompt with the settings of its generation, and the builder that makes one.

A request is complete: answering it needs no XML, no schema and no options of the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from promptcache.diagnostics import FLAG, TEXT, InvalidGeneration, InvalidValue, whole
from promptcache.language import Prompt
from promptcache.layout import Plan, continued, recompute
from promptcache.runtime.executor import Executor
from promptcache.runtime.generate import end_ids
from promptcache.runtime.hf.options import check_for_logprobs, check_for_output, read_options
from promptcache.runtime.logprobs import LOGPROBS
from promptcache.runtime.planner import Planner, PromptSource, TemplateOptions, check_room
from promptcache.runtime.reasoning import ReasoningSplit, is_open_in
from promptcache.runtime.token_masks import token_grammars
from promptcache.runtime.turns import ChatTurn
from promptcache.structured import OutputFormat, TokenGrammars, TokenMatcher, read_output
from promptcache.tokenizer import Tokenizer

_SALT = TEXT | None
_SEED = whole(0, 2**64 - 1) | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """The settings of a request: the keywords of `Engine.generate`, which describes them.

    Attributes:
        generation: Options of transformers' `generate`.
    """

    max_new_tokens: int | None = None
    repair: str | None = None
    positions: str | None = None
    logprobs: int | None = None
    seed: int | None = None
    salt: str | None = None
    template_kwargs: TemplateOptions = None
    deterministic: bool = False
    output: Any = None
    generation: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> RequestSettings:
        """Return the settings that keywords give; those with other names are options of transformers' `generate`."""
        own = {name: value for name, value in keywords.items() if name in _OWN_SETTINGS}
        return cls(**own, generation={name: value for name, value in keywords.items() if name not in own})


_OWN_SETTINGS = frozenset(each.name for each in fields(RequestSettings)) - {"generation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A planned prompt and the settings of its generation.

    Attributes:
        eos_ids: Tokens that end the answer.
        options: Options of transformers' `generate`.
        started: Time of the call, by `time.perf_counter`.
        text: Turns token IDs into text without special tokens.
        reasoning_tags: The texts around reasoning, or None.
        reasoning_is_open: Whether the prompt ends with the first of them.
        logprobs: Number of the most probable tokens to report for each token; None reports no log-probabilities.
        seed: Seed of the random generator; None draws one from the random state of torch.
        salt: Requests share history only with requests of the same salt.
        history: Whether the request reads and keeps history.
        exact: Returns the exact plan of `plan` for a salt, if its combination is promoted now, else None; counts its
            use. None for a request that is always answered by `plan`.
        promoted: Whether `plan` is such an exact plan.
        note: Called with the plan that is used, when the request begins; None calls nothing.
        output: The format of the answer; None if it may be any text.
        matcher: The state of the format at the start of the answer. Not changed.
    """

    plan: Plan
    eos_ids: Sequence[int]
    max_new_tokens: int
    options: Mapping[str, Any]
    started: float
    text: Callable[[Sequence[int]], str]
    reasoning_tags: tuple[str, str] | None = None
    reasoning_is_open: bool = False
    logprobs: int | None = None
    seed: int | None = None
    salt: str | None = None
    history: bool = True
    exact: Callable[[Plan, str | None], Plan | None] | None = None
    promoted: bool = False
    note: Callable[[Plan], None] | None = None
    output: OutputFormat | None = None
    matcher: TokenMatcher | None = None

    def reasoning_split(self) -> ReasoningSplit:
        """Return a splitter for the text of an answer."""
        return ReasoningSplit(self.reasoning_tags, is_open=self.reasoning_is_open)

    def without_reuse(self) -> Request:
        """Return the request as plain prefill: the same tokens at the same positions, no KV of modules or history."""
        return replace(self, plan=prefilled(self.plan), history=False)


def prefilled(plan: Plan) -> Plan:
    """Return a plan that computes all tokens of another one."""
    return recompute(plan, dict.fromkeys((each.run for each in plan.reuse), plan.stop))


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


class RequestBuilder:
    """Makes requests: it reads, checks and plans prompts. No model work. Thread-safe.

    Attributes:
        planner: Plans the prompts.
        executor: Will answer the requests.
        tokenizer: Turns text into token IDs, and back.
    """

    def __init__(
        self,
        planner: Planner,
        executor: Executor,
        tokenizer: Tokenizer,
        hf_tokenizer: Any = None,
        exact: Callable[[Plan, str | None], Plan | None] | None = None,
        note: Callable[[Plan], None] | None = None,
    ) -> None:
        """Create a builder.

        Args:
            hf_tokenizer: A tokenizer of transformers, for options that need one; None if there is none.
            exact, note: As in `Request`.
        """
        self.planner, self.executor, self.tokenizer = planner, executor, tokenizer
        self._hf_tokenizer = hf_tokenizer
        self._exact, self._note = exact, note

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        configured: Any = getattr(self.executor.model.hf.generation_config, "eos_token_id", None)
        declared = [configured] if isinstance(configured, int) else list(configured or ())
        return tuple(sorted({*self.tokenizer.eos_ids, *declared}))

    def build(self, prompt: PromptSource, settings: RequestSettings, given: Sequence[int] = ()) -> Request:
        """Return the request of a prompt.

        Args:
            given: Tokens of the answer that were generated already; the request continues behind them.

        Raises:
            As `Engine.generate`.
        """

        def plan() -> Plan:
            made = self.planner.plan(prompt, settings.repair, settings.template_kwargs, settings.positions)
            return continued(made, given)

        return self._build(plan, settings, given)

    def build_chat(
        self, prompt: Prompt, turns: Sequence[ChatTurn], question: str, settings: RequestSettings
    ) -> Request:
        """Return the request of the answer to a question, in a conversation on top of a prompt."""

        return self._build(lambda: self.plan_chat(prompt, turns, question, settings), settings)

    def plan_chat(self, prompt: Prompt, turns: Sequence[ChatTurn], question: str, settings: RequestSettings) -> Plan:
        """Return the plan of the request that `build_chat` builds."""
        return self.planner.plan_chat(
            prompt, turns, question, settings.repair, settings.template_kwargs, settings.positions
        )

    def _build(self, make_plan: Callable[[], Plan], settings: RequestSettings, given: Sequence[int] = ()) -> Request:
        started = time.perf_counter()
        options = read_options(settings.generation, settings.max_new_tokens)
        self.executor.activity.note()
        plan, model = make_plan(), self.executor.model
        FLAG.check("deterministic", settings.deterministic, InvalidGeneration)
        LOGPROBS.check("logprobs", settings.logprobs, InvalidGeneration)
        if settings.logprobs is not None:
            check_for_logprobs(options, model)
        _SEED.check("seed", settings.seed, InvalidGeneration)
        _SALT.check("salt", settings.salt, InvalidValue)
        limit = check_room(plan, options.pop("max_new_tokens", None), model.context_length)
        is_open = is_open_in(plan, self.tokenizer)
        output = None if settings.output is None else read_output(settings.output)
        return Request(
            plan=plan,
            eos_ids=self.end_ids,
            max_new_tokens=limit,
            options=options if self._hf_tokenizer is None else {"tokenizer": self._hf_tokenizer, **options},
            started=started,
            text=self.tokenizer.decode,
            reasoning_tags=self.tokenizer.reasoning_tags,
            reasoning_is_open=is_open,
            logprobs=settings.logprobs,
            seed=settings.seed,
            salt=settings.salt,
            exact=None if settings.deterministic else self._exact,
            note=self._note,
            output=output,
            matcher=None if output is None else self._matcher(output, options, is_open, given),
        )

    @cached_property
    def _grammars(self) -> TokenGrammars:
        return token_grammars(self.tokenizer, self.executor.model.num_known_tokens)

    def _matcher(
        self, output: OutputFormat, options: Mapping[str, Any], reasoning_is_open: bool, given: Sequence[int]
    ) -> TokenMatcher:
        """Return the state of a format behind the given tokens of the answer."""
        check_for_output(options, self.executor.model)
        ends = end_ids(options, self.end_ids)
        matcher = self._grammars.matcher(output, ends, self.tokenizer.reasoning_tags, reasoning_is_open)
        if not all(map(matcher.add, given)):
            raise InvalidGeneration("the tokens of the answer that are given do not have its format")
        return matcher
