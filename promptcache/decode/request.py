"""Requests: a planned prompt with the options of its answer, and the builder that makes one.

A request is complete: answering it needs no XML and no schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from promptcache.answers import AnswerReader, TokenGrammars, TokenMatcher, answer_reader, token_grammars
from promptcache.diagnostics import InvalidGeneration, inside, shown
from promptcache.encode import Executor, Prepared, Progress, Refiner, prepare
from promptcache.language import CHAT_SCHEMA, Prompt, output_format, text_of
from promptcache.layout import Plan, render
from promptcache.model import Model, read_options
from promptcache.options import OptionKeywords, Options
from promptcache.planning import ChatPrompt, Planner, PromptSource, TemplateOptions, check_room, checked_batch
from promptcache.structured import CallsOrText, OutputFormat, Tool, ToolCalls, read_output, read_tools
from promptcache.tokenizer import Tokenizer


def called_tools(options: Options) -> tuple[Tool, ...]:
    """Return the tools that the answer may call.

    Raises:
        InvalidValue: They are no tools, or `tool_choice` names none of them.
    """
    tools = read_tools(options.tools)
    choices = ("auto", "none", "required") if tools else ("auto", "none")
    if options.tool_choice not in (*choices, *(each.name for each in tools)):
        raise InvalidGeneration(
            f"tool_choice={shown(options.tool_choice)} is not allowed: {', '.join(choices)} or the name of one of "
            "`tools` is expected"
        )
    return () if options.tool_choice == "none" else tools


def _template_options(options: Options, prompt: PromptSource | ChatPrompt, tools: Sequence[Tool]) -> TemplateOptions:
    """Return the variables of the chat template; for a plain chat with its tools."""
    if not tools or not _is_chat(prompt):
        return options.template_kwargs
    return {**(options.template_kwargs or {}), "tools": [each.definition for each in tools]}


def _whole_format(
    options: Options, output: OutputFormat | None, tools: Sequence[Tool], reader: AnswerReader
) -> OutputFormat | None:
    """Return the format of a whole answer: of its text, of calls of tools, or either; None if it may be anything.

    Args:
        output: The format of its text.

    Raises:
        InvalidGeneration: Text and calls cannot be told apart.
    """
    choice = options.tool_choice
    if not tools or (output is None and choice == "auto"):
        return output
    called = tuple(each for each in tools if choice in ("auto", "required", each.name))
    several = options.parallel_tool_calls and choice in ("auto", "required")
    calls = ToolCalls(called, reader.call_style, several=several)
    return calls if output is None or choice != "auto" else CallsOrText(calls, output, reader.text_start)


def _check_length_of_format(options: Options, model: Model) -> None:
    """Refuse a minimum of new tokens, which a format may not have.

    Raises:
        InvalidGeneration: The options, or the model's generation configuration, have one.
    """
    if options.min_new_tokens:
        is_own = options.min_new_tokens == getattr(model.hf.generation_config, "min_new_tokens", None)
        where = ", which the model's generation configuration sets" if is_own else ""
        reason = "<answer> of the prompt or its schema" if options.output is None else "'output'"
        if options.tool_choice not in ("auto", "none"):
            reason = "'tool_choice'"
        raise InvalidGeneration(f"{reason} does not work with 'min_new_tokens'{where}: leave one of them out")


def check_tools(tools: Sequence[Tool], prompt: PromptSource | ChatPrompt, plan: Plan, tokenizer: Tokenizer) -> None:
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


def _is_chat(prompt: PromptSource | ChatPrompt) -> bool:
    """Whether the chat template writes all of a prompt."""
    prompt = prompt.prompt if isinstance(prompt, ChatPrompt) else prompt
    return isinstance(prompt, list | tuple) or (isinstance(prompt, Prompt) and prompt.schema == CHAT_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A planned prompt and all that was asked of its answer.

    Attributes:
        options: Complete: with the limit of this answer, and its format as an `OutputFormat`.
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
    started: float
    text: Callable[[Sequence[int]], str]
    token_bytes: Callable[[int], bytes]
    reader: AnswerReader = field(default_factory=AnswerReader)
    history: bool = True
    refiners: tuple[Refiner, ...] = ()
    matcher: TokenMatcher | None = None

    @property
    def max_new_tokens(self) -> int:
        """Maximum number of generated tokens."""
        assert self.options.max_new_tokens is not None, "a request has the limit of its answer"
        return self.options.max_new_tokens

    def copies(self, number: int) -> list[Request]:
        """Return a request for each of several sequences. With a seed, each further one has the next seed."""
        first = self.options.seed
        seeds = [None if first is None else (first + index) % 2**64 for index in range(number)]
        return [replace(self, options=replace(self.options, num_return_sequences=1, seed=seed)) for seed in seeds]

    def prepare(self, executor: Executor, progress: Progress | None = None) -> Prepared:
        """Return the plan that is used, with its KV; as `prepare`."""
        salt = self.options.salt
        return prepare(self.plan, executor, refiners=self.refiners, history=self.history, salt=salt, progress=progress)

    def without_reuse(self) -> Request:
        """Return the request as ordinary prefill: the same tokens and positions, without KV of modules or history."""
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
        refiners: tuple[Refiner, ...] = (),
    ) -> None:
        """Create a builder.

        Args:
            refiners: Those of its requests, unless the options of a request exclude them.
        """
        self.planner, self.executor, self.tokenizer = planner, executor, tokenizer
        self._refiners = refiners

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        return tuple(sorted({*self.tokenizer.eos_ids, *self.executor.model.end_ids}))

    def text(self, ends: Sequence[int]) -> Callable[[Sequence[int]], str]:
        """Return what turns the tokens of an answer into text, without the control tokens that end it."""
        return partial(_text, self.tokenizer, self.tokenizer.control_ids.intersection(ends))

    def read(self, keywords: OptionKeywords) -> Options:
        """Return the options that keywords ask for, completed by the generation configuration of the model.

        Raises:
            InvalidGeneration: An option is not known, not allowed or not supported.
        """
        return read_options(keywords, self.executor.model, self.end_ids)

    def build(self, prompt: PromptSource | ChatPrompt, options: Options) -> Request:
        """Return the request of a prompt.

        Raises:
            As `Engine.generate`.
        """
        started = time.perf_counter()
        self.executor.activity.arrived()
        tools = called_tools(options)
        # The template writes the tools of a conversation, whatever the next answer may call.
        written = read_tools(options.tools) if isinstance(prompt, ChatPrompt) else tools
        plan = self.planner.plan(prompt, options.repair, _template_options(options, prompt, written))
        model = self.executor.model
        check_tools(tools, prompt, plan, self.tokenizer)
        limit = check_room(plan, options.max_new_tokens, model.context_length)
        reader = answer_reader(self.tokenizer, plan, tools)
        output = _format_of(plan) if options.output is None else read_output(options.output)
        form = _whole_format(options, output, tools, reader)
        if form is not None:
            _check_length_of_format(options, model)
        return Request(
            plan=plan,
            options=replace(options, max_new_tokens=limit, output=output),
            started=started,
            text=self.text(options.end_ids),
            token_bytes=self.tokenizer.token_bytes,
            reader=reader,
            refiners=() if options.deterministic else self._refiners,
            matcher=None if form is None else self._matcher(form, options.end_ids, reader),
        )

    def build_batch(self, prompts: Sequence[PromptSource], options: Options) -> list[Request]:
        """Return the requests of several prompts, as `build`.

        An error of a prompt names its index.

        Raises:
            InvalidValue: `prompts` is a single prompt, such as a text or one list of chat messages.
            InvalidGeneration: The options have a streamer.
        """
        options.check_batch()
        requests = []
        for index, each in enumerate(checked_batch(prompts)):
            with inside(f"prompts[{index}]"):
                requests.append(self.build(each, options))
        return requests

    @cached_property
    def _grammars(self) -> TokenGrammars:
        return token_grammars(self.tokenizer, self.executor.model.num_known_tokens)

    def _matcher(self, output: OutputFormat, ends: Sequence[int], reader: AnswerReader) -> TokenMatcher:
        """Return the state of a format at the start of an answer."""
        return self._grammars.matcher(
            output,
            ends,
            None if reader.reasoning_is_closed else reader.reasoning_tags,
            is_open=reader.reasoning_is_open,
            before="" if isinstance(output, ToolCalls | CallsOrText) else reader.text_start,
        )
