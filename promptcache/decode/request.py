"""Requests: a planned prompt with the options of its answer, and the builder that makes one.

A request is complete: answering it needs no XML and no schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from promptcache.answers import AnswerReader, TokenGrammars, TokenMatcher, answer_reader, token_grammars
from promptcache.diagnostics import InvalidGeneration, inside, shown
from promptcache.encode import Executor, Refiner
from promptcache.language import CHAT_SCHEMA, Prompt, output_format, text_of
from promptcache.layout import Plan, piece_texts
from promptcache.model import Model, read_options
from promptcache.options import OptionKeywords, Options
from promptcache.planning import ChatPrompt, Planner, PromptSource, check_room, checked_batch
from promptcache.structured import CallsOrText, OutputFormat, Tool, ToolCalls, read_output, read_tools
from promptcache.tokenizer import Tokenizer


def called_tools(options: Options) -> tuple[Tool, ...]:
    """Return the tools that the answer may call. `tool_choice` names one of them, or how they are chosen."""
    tools = read_tools(options.tools)
    choices = ("auto", "none", "required") if tools else ("auto", "none")
    if options.tool_choice not in (*choices, *(each.name for each in tools)):
        raise InvalidGeneration(
            f"tool_choice={shown(options.tool_choice)} is not allowed: {', '.join(choices)} or the name of one of "
            "`tools` is expected"
        )
    return () if options.tool_choice == "none" else tools


def _format_with_calls(
    options: Options, output: OutputFormat | None, tools: Sequence[Tool], reader: AnswerReader
) -> OutputFormat | None:
    """Return the format of an answer that may call tools, or have text in the format `output`; None: anything."""
    choice = options.tool_choice
    if output is None and choice == "auto":
        return None
    called = tuple(each for each in tools if choice in ("auto", "required", each.name))
    several = options.parallel_tool_calls and choice in ("auto", "required")
    calls = ToolCalls(called, reader.call_style, several=several)
    return calls if output is None or choice != "auto" else CallsOrText(calls, output, reader.text_start)


def _check_length_of_format(options: Options, model: Model) -> None:
    """Refuse a minimum of new tokens, which a format may not have."""
    if options.min_new_tokens:
        is_own = options.min_new_tokens == getattr(model.hf.generation_config, "min_new_tokens", None)
        where = ", which the model's generation configuration sets" if is_own else ""
        reason = "<answer> of the prompt or its schema" if options.output is None else "'output'"
        if options.tool_choice not in ("auto", "none"):
            reason = "'tool_choice'"
        raise InvalidGeneration(f"{reason} does not work with 'min_new_tokens'{where}: leave one of them out")


def _check_tools(tools: Sequence[Tool], plan: Plan, tokenizer: Tokenizer, *, is_chat: bool) -> None:
    """Refuse tools whose definitions the model would not read. Of a chat, the template writes all of the prompt."""
    text = "".join(piece_texts(plan, tokenizer)) if is_chat else text_of(plan.selection)
    if (unread := next((each.name for each in tools if each.name not in text), None)) is not None:
        fix = (
            "the chat template of this model writes no tools; put their definitions into a message"
            if is_chat
            else "put its definition into a module of the schema (promptcache.retrieval.tool_member)"
        )
        raise InvalidGeneration(f"the tool {shown(unread)} is not in the text of this prompt: {fix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A planned prompt and all that was asked of its answer.

    Attributes:
        options: Its format is an `OutputFormat`.
        max_new_tokens: Maximum number of generated tokens.
        started: Time of the call, by `time.perf_counter`.
        text: Turns token IDs into text without special tokens.
        token_bytes: That of the tokenizer.
        reader: Splits the text of the answer into its parts.
        history: Whether the request reads and keeps history.
        refiners: Choose the plan that is used, by the KV that there is.
        matcher: The state of the format at the start of the answer. Not changed.
    """

    plan: Plan
    options: Options
    max_new_tokens: int
    started: float
    text: Callable[[Sequence[int]], str]
    token_bytes: Callable[[int], bytes]
    reader: AnswerReader = field(default_factory=AnswerReader)
    history: bool = True
    refiners: tuple[Refiner, ...] = ()
    matcher: TokenMatcher | None = None

    def copies(self, number: int) -> list[Request]:
        """Return a request for each of several sequences. With a seed, each further one has the next seed."""
        first = self.options.seed
        seeds = [None if first is None else (first + index) % 2**64 for index in range(number)]
        return [replace(self, options=replace(self.options, num_return_sequences=1, seed=seed)) for seed in seeds]

    def without_reuse(self) -> Request:
        """Return the request as ordinary prefill: the same tokens and positions, without KV of modules or history."""
        return replace(self, plan=self.plan.plain(), history=False, refiners=())


class RequestBuilder:
    """Makes requests: it reads, checks and plans prompts. No model work. Thread-safe.

    Attributes:
        planner: Plans the prompts.
        executor: Will answer the requests.
        tokenizer: Turns text into token IDs, and back.
        refiners: Those of its requests, unless the options of a request exclude them.
    """

    def __init__(
        self, planner: Planner, executor: Executor, tokenizer: Tokenizer, refiners: tuple[Refiner, ...] = ()
    ) -> None:
        self.planner, self.executor, self.tokenizer, self.refiners = planner, executor, tokenizer, refiners

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        return tuple(sorted({*self.tokenizer.eos_ids, *self.executor.model.end_ids}))

    def text(self, ends: Sequence[int]) -> Callable[[Sequence[int]], str]:
        """Return what turns the tokens of an answer into text, without the control tokens that end it."""
        tokenizer, without = self.tokenizer, self.tokenizer.control_ids.intersection(ends)
        return lambda token_ids: tokenizer.decode([each for each in token_ids if each not in without])

    def read(self, keywords: OptionKeywords) -> Options:
        """Return the options that keywords ask for, as `read_options`."""
        return read_options(keywords, self.executor.model, self.end_ids)

    def build(self, prompt: PromptSource | ChatPrompt, options: Options) -> Request:
        """Return the request of a prompt. Errors are those of `Engine.generate`."""
        started = time.perf_counter()
        self.executor.activity.arrived()
        tools = called_tools(options)
        # The template writes the tools of a conversation, whatever the next answer may call.
        written = read_tools(options.tools) if isinstance(prompt, ChatPrompt) else tools
        whole = prompt.prompt if isinstance(prompt, ChatPrompt) else prompt
        is_chat = isinstance(whole, list | tuple) or (isinstance(whole, Prompt) and whole.schema == CHAT_SCHEMA)
        variables = options.template_kwargs
        if written and is_chat:
            variables = {**(variables or {}), "tools": [each.definition for each in written]}
        plan, model = self.planner.plan(prompt, options.repair, variables), self.executor.model
        if tools:
            _check_tools(tools, plan, self.tokenizer, is_chat=is_chat)
        limit = check_room(plan, options.max_new_tokens, model.context_length)
        reader = answer_reader(self.tokenizer, plan, tools)
        output: OutputFormat | None = None
        stated = plan.selection.answer_format
        if options.output is not None:
            output = read_output(options.output)
        elif stated is not None:
            output = output_format(stated)
        form = _format_with_calls(options, output, tools, reader) if tools else output
        matcher = None
        if form is not None:
            _check_length_of_format(options, model)
            matcher = self._grammars.matcher(
                form,
                options.end_ids,
                None if reader.reasoning_is_closed else reader.reasoning_tags,
                is_open=reader.reasoning_is_open,
                before="" if isinstance(form, ToolCalls | CallsOrText) else reader.text_start,
            )
        return Request(
            plan=plan,
            options=replace(options, output=output),
            max_new_tokens=limit,
            started=started,
            text=self.text(options.end_ids),
            token_bytes=self.tokenizer.token_bytes,
            reader=reader,
            refiners=() if options.deterministic else self.refiners,
            matcher=matcher,
        )

    def build_batch(self, prompts: Sequence[PromptSource], options: Options) -> list[Request]:
        """Return the requests of several prompts, as `build`. An error of a prompt names its index."""
        if options.streamer is not None:
            raise InvalidGeneration("a streamer takes the tokens of one answer, not of a batch; use stream() for each")
        requests = []
        for index, each in enumerate(checked_batch(prompts)):
            with inside(f"prompts[{index}]"):
                requests.append(self.build(each, options))
        return requests

    @cached_property
    def _grammars(self) -> TokenGrammars:
        return token_grammars(self.tokenizer, self.executor.model.num_known_tokens)
