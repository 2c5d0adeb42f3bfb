"""Requests: a planned prompt with the settings of its generation, and the builder that makes one.

A request is complete: answering it needs no XML, no schema and no options of the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

from promptcache.diagnostics import FLAG, TEXT, InvalidGeneration, InvalidValue, shown, whole
from promptcache.language import CHAT_SCHEMA, Prompt, output_format, text_of
from promptcache.layout import Plan, render
from promptcache.runtime.answer_reader import AnswerReader, answer_reader
from promptcache.runtime.encode import Progress
from promptcache.runtime.executor import Executor
from promptcache.runtime.hf.options import check_for_logprobs, check_for_output, end_ids, num_sequences, read_options
from promptcache.runtime.logit_changes import LOGIT_BIAS, PENALTY, LogitChanges
from promptcache.runtime.logprobs import LOGPROBS
from promptcache.runtime.planner import Planner, PromptSource, TemplateOptions, check_room
from promptcache.runtime.prepare import Prepared, Refiner, prepare
from promptcache.runtime.token_grammars import TokenGrammars, TokenMatcher
from promptcache.runtime.token_masks import token_grammars
from promptcache.runtime.turns import ChatTurn
from promptcache.structured import CallsOrText, OutputFormat, Tool, ToolCalls, read_output, read_tools
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
    logprobs: int | None = None
    seed: int | None = None
    salt: str | None = None
    template_kwargs: TemplateOptions = None
    deterministic: bool = False
    output: Any = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    generation: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> RequestSettings:
        """Return the settings that keywords give; those with other names are options of transformers' `generate`."""
        own = {name: value for name, value in keywords.items() if name in _OWN_SETTINGS}
        return cls(**own, generation={name: value for name, value in keywords.items() if name not in own})

    def logit_changes(self) -> LogitChanges:
        """Return the changes of logits.

        Raises:
            InvalidGeneration: A penalty is no number, or the biases are no mapping of token IDs to numbers.
        """
        PENALTY.check("presence_penalty", self.presence_penalty, InvalidGeneration)
        PENALTY.check("frequency_penalty", self.frequency_penalty, InvalidGeneration)
        bias = {} if self.logit_bias is None else self.logit_bias
        LOGIT_BIAS.check("logit_bias", bias, InvalidGeneration)
        return LogitChanges(
            presence_penalty=float(self.presence_penalty),
            frequency_penalty=float(self.frequency_penalty),
            logit_bias=tuple((token, float(value)) for token, value in bias.items()),
        )

    def template_options(self, prompt: PromptSource, tools: Sequence[Tool]) -> TemplateOptions:
        """Return the variables of the chat template; for a plain chat with its tools."""
        if not tools or not _is_chat(prompt):
            return self.template_kwargs
        return {**(self.template_kwargs or {}), "tools": [each.definition for each in tools]}

    def read_tools(self) -> tuple[Tool, ...]:
        """Return the tools that the answer may call.

        Raises:
            InvalidValue: They are no tools, or `tool_choice` names none of them.
        """
        tools = read_tools(self.tools)
        FLAG.check("parallel_tool_calls", self.parallel_tool_calls, InvalidGeneration)
        choices = ("auto", "none", "required") if tools else ("auto", "none")
        if self.tool_choice not in (*choices, *(each.name for each in tools)):
            raise InvalidGeneration(
                f"tool_choice={shown(self.tool_choice)} is not allowed: {', '.join(choices)} or the name of one of "
                "`tools` is expected"
            )
        return () if self.tool_choice == "none" else tools

    def whole_format(
        self, output: OutputFormat | None, tools: Sequence[Tool], reader: AnswerReader
    ) -> OutputFormat | None:
        """Return the format of a whole answer: of its text, of calls of tools, or either; None if it may be anything.

        Args:
            output: The format of its text.

        Raises:
            InvalidGeneration: Text and calls cannot be told apart.
        """
        if not tools or (output is None and self.tool_choice == "auto"):
            return output
        called = tuple(each for each in tools if self.tool_choice in ("auto", "required", each.name))
        several = self.parallel_tool_calls and self.tool_choice in ("auto", "required")
        calls = ToolCalls(called, reader.call_style, several=several)
        return calls if output is None or self.tool_choice != "auto" else CallsOrText(calls, output, reader.text_start)

    @property
    def format_reason(self) -> str:
        """What gives an answer its format, for errors."""
        if self.tool_choice not in ("auto", "none"):
            return "'tool_choice'"
        return "<answer> of the prompt or its schema" if self.output is None else "'output'"


def check_tools(tools: Sequence[Tool], prompt: PromptSource, plan: Plan, tokenizer: Tokenizer) -> None:
    """Refuse tools whose definitions the model would not read.

    Raises:
        InvalidGeneration: Names the first one.
    """
    if not tools:
        return
    text = render(plan, tokenizer).text if _is_chat(prompt) else text_of(plan.selection)
    if (unread := next((each.name for each in tools if each.name not in text), None)) is not None:
        fix = (
            "the chat template of this model writes no tools; put their definitions into a message"
            if _is_chat(prompt)
            else "put its definition into a module of the schema (promptcache.retrieval.tool_member)"
        )
        raise InvalidGeneration(f"the tool {shown(unread)} is not in the text of this prompt: {fix}")


def _text(tokenizer: Tokenizer, without: Collection[int], token_ids: Sequence[int]) -> str:
    """Return the text of an answer without some tokens."""
    return tokenizer.decode([each for each in token_ids if each not in without])


def _is_chat(prompt: PromptSource) -> bool:
    """Whether the chat template writes all of a prompt."""
    return isinstance(prompt, list | tuple) or (isinstance(prompt, Prompt) and prompt.schema == CHAT_SCHEMA)


_OWN_SETTINGS = frozenset(each.name for each in fields(RequestSettings)) - {"generation"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A planned prompt and the settings of its generation.

    Attributes:
        eos_ids: Tokens that end the answer.
        options: Options of transformers' `generate`.
        started: Time of the call, by `time.perf_counter`.
        text: Turns token IDs into text without special tokens.
        reader: Splits the text of the answer into its parts.
        logprobs: Number of the most probable tokens to report for each token; None reports no log-probabilities.
        seed: Seed of the random generator; None draws one from the random state of torch.
        salt: Requests share history only with requests of the same salt.
        history: Whether the request reads and keeps history.
        refiners: Choose the plan that is used, by the KV that there is.
        output: The format of the answer; None if it may be any text.
        changes: Changes of logits before all other processing.
        num_sequences: Number of answers. Each is a row of its own.
        matcher: The state of the format at the start of the answer. Not changed.
    """

    plan: Plan
    eos_ids: Sequence[int]
    max_new_tokens: int
    options: Mapping[str, Any]
    started: float
    text: Callable[[Sequence[int]], str]
    reader: AnswerReader = field(default_factory=AnswerReader)
    logprobs: int | None = None
    seed: int | None = None
    salt: str | None = None
    history: bool = True
    refiners: tuple[Refiner, ...] = ()
    output: OutputFormat | None = None
    changes: LogitChanges = field(default_factory=LogitChanges)
    num_sequences: int = 1
    matcher: TokenMatcher | None = None

    def copies(self, number: int) -> list[Request]:
        """Return a request for each of several sequences. With a seed, each further one has the next seed."""
        seeds = [None if self.seed is None else self.seed + index for index in range(number)]
        return [replace(self, num_sequences=1, seed=seed) for seed in seeds]

    def prepare(self, executor: Executor, progress: Progress | None = None) -> Prepared:
        """Return the plan that is used, with its KV; as `prepare`."""
        return prepare(
            self.plan, executor, refiners=self.refiners, history=self.history, salt=self.salt, progress=progress
        )

    def without_reuse(self) -> Request:
        """Return the request as plain prefill: the same tokens at the same positions, no KV of modules or history."""
        return replace(self, plan=self.plan.plain(), history=False, refiners=())


def _format_of(plan: Plan) -> OutputFormat | None:
    """Return the format of the answer that a prompt or its schema states, or None."""
    answer = plan.selection.answer_format
    return None if answer is None else output_format(answer)


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
        refiners: tuple[Refiner, ...] = (),
    ) -> None:
        """Create a builder.

        Args:
            hf_tokenizer: A tokenizer of transformers, for options that need one; None if there is none.
            refiners: Those of its requests, unless the options of a request exclude them.
        """
        self.planner, self.executor, self.tokenizer = planner, executor, tokenizer
        self._hf_tokenizer = hf_tokenizer
        self._refiners = refiners

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        return tuple(sorted({*self.tokenizer.eos_ids, *self.executor.model.end_ids}))

    def text(self, ends: Sequence[int]) -> Callable[[Sequence[int]], str]:
        """Return what turns the tokens of an answer into text, without the control tokens that end it."""
        return partial(_text, self.tokenizer, self.tokenizer.control_ids.intersection(ends))

    def build(self, prompt: PromptSource, settings: RequestSettings) -> Request:
        """Return the request of a prompt.

        Raises:
            As `Engine.generate`.
        """

        def plan(tools: Sequence[Tool]) -> Plan:
            template = settings.template_options(prompt, tools)
            return self.planner.plan(prompt, settings.repair, template)

        return self._build(prompt, plan, settings)

    def build_chat(
        self,
        prompt: Prompt,
        turns: Sequence[ChatTurn],
        question: str,
        settings: RequestSettings,
        results: Sequence[str] = (),
    ) -> Request:
        """Return the request of the answer to a question, or to results, in a conversation on top of a prompt."""
        return self._build(prompt, lambda _tools: self.plan_chat(prompt, turns, question, settings, results), settings)

    def plan_chat(
        self,
        prompt: Prompt,
        turns: Sequence[ChatTurn],
        question: str,
        settings: RequestSettings,
        results: Sequence[str] = (),
    ) -> Plan:
        """Return the plan of the request that `build_chat` builds. The template writes tools whatever may be called."""
        template = settings.template_options(prompt, read_tools(settings.tools))
        return self.planner.plan_chat(prompt, turns, question, settings.repair, template, results)

    def _build(
        self, prompt: PromptSource, make_plan: Callable[[Sequence[Tool]], Plan], settings: RequestSettings
    ) -> Request:
        started = time.perf_counter()
        options = read_options(settings.generation, settings.max_new_tokens)
        self.executor.activity.note()
        tools = settings.read_tools()
        plan, model = make_plan(tools), self.executor.model
        check_tools(tools, prompt, plan, self.tokenizer)
        FLAG.check("deterministic", settings.deterministic, InvalidGeneration)
        LOGPROBS.check("logprobs", settings.logprobs, InvalidGeneration)
        if settings.logprobs is not None:
            check_for_logprobs(options, model)
        _SEED.check("seed", settings.seed, InvalidGeneration)
        _SALT.check("salt", settings.salt, InvalidValue)
        limit = check_room(plan, options.pop("max_new_tokens", None), model.context_length)
        changes = settings.logit_changes()
        changes.check(model.num_known_tokens)
        reader = answer_reader(self.tokenizer, plan, tools)
        output = _format_of(plan) if settings.output is None else read_output(settings.output)
        form = settings.whole_format(output, tools, reader)
        if form is not None:
            check_for_output(options, model, settings.format_reason)
        return Request(
            plan=plan,
            eos_ids=self.end_ids,
            max_new_tokens=limit,
            options=options if self._hf_tokenizer is None else {"tokenizer": self._hf_tokenizer, **options},
            started=started,
            text=self.text(end_ids(options, self.end_ids)),
            reader=reader,
            changes=changes,
            num_sequences=num_sequences(options, model),
            logprobs=settings.logprobs,
            seed=settings.seed,
            salt=settings.salt,
            refiners=() if settings.deterministic else self._refiners,
            output=output,
            matcher=None if form is None else self._matcher(form, options, reader),
        )

    @cached_property
    def _grammars(self) -> TokenGrammars:
        return token_grammars(self.tokenizer, self.executor.model.num_known_tokens)

    def _matcher(self, output: OutputFormat, options: Mapping[str, Any], reader: AnswerReader) -> TokenMatcher:
        """Return the state of a format at the start of an answer."""
        ends = end_ids(options, self.end_ids)
        return self._grammars.matcher(
            output,
            ends,
            None if reader.reasoning_is_closed else reader.reasoning_tags,
            is_open=reader.reasoning_is_open,
            before="" if isinstance(output, ToolCalls | CallsOrText) else reader.text_start,
        )
