"""Conversations: turns on top of a prompt, each answered from the KV of the turns before it.

A chat holds texts and token IDs, never KV; history keeps that. An answer stays as it was generated and is not tokenized
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, cast

from promptcache.answers import AnswerReader, call_style, has_channels, whole_text
from promptcache.decode import Completion, Request, RequestBuilder, Stream, answer, called_tools
from promptcache.diagnostics import (
    PATH,
    TEXT,
    ContextLengthExceeded,
    InvalidGeneration,
    InvalidValue,
    Kind,
    Unpicklable,
    counted,
    shown,
    whole,
)
from promptcache.kv import expand_home
from promptcache.language import CHAT_SCHEMA, Prompt, Role, open_prompt, split_question
from promptcache.options import AnswerKeywords, OptionKeywords
from promptcache.planning import ChatPrompt, ChatTurn, chat_message, turn_messages
from promptcache.session.chat_file import SavedChat, not_a_chat, read_chat, write_chat
from promptcache.structured import CallStyle, OutputType, Parsed, Tool, read_tools

_TURNS = whole(1, unit="questions")
_OF_CHAT = ("repair", "salt", "template_kwargs", "tools")
_RESULTS = Kind(
    "a list of texts, one for each call of the last answer,",
    lambda value: isinstance(value, list | tuple) and all(map(TEXT.takes, value)),
)


class Chat(Unpicklable):
    """A conversation over a prompt. Use a chat from one thread at a time; `fork` makes another.

    Attributes:
        prompt: The prompt below the conversation.
        question: The user turn or bare text at the end of the prompt, until `say()` without a text answers it.
        turns: The questions with their answers.
        options: The options of every answer that were given; `say` has others of one answer.
    """

    _instead = "use save and Engine.load_chat"

    def __init__(
        self,
        requests: RequestBuilder,
        prompt: Prompt,
        options: OptionKeywords,
        turns: tuple[ChatTurn, ...] = (),
        question: str | None = None,
    ) -> None:
        called_tools(requests.read(options))
        if any(message.role is None for message in prompt.messages):
            raise InvalidValue("bare text of a chat's prompt is its first question: remove it, or the other turns")
        self.prompt, self.question, self.turns = prompt, question, turns
        self.options = cast("OptionKeywords", {name: each for name, each in options.items() if each is not None})
        self._requests = requests

    @classmethod
    def over(
        cls, requests: RequestBuilder, prompt: Prompt, options: OptionKeywords, turns: tuple[ChatTurn, ...] = ()
    ) -> Chat:
        """Return a chat over a prompt. Without turns, the user turn or bare text at its end is the first question."""
        prompt, question = (prompt, None) if turns else split_question(prompt)
        return cls(requests, prompt, options, turns, question)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.prompt.schema}: {len(self.turns)} questions>"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat messages, those of the prompt included: `{"role": …, "content": …}`.

        An answer with reasoning has it as `reasoning_content`, and calls of tools as `tool_calls`.
        """
        said = [chat_message(each.role or Role.USER, each.text, each.reasoning) for each in self.prompt.messages]
        said += turn_messages(self.turns)
        return [*said, *([] if self.question is None else [chat_message(Role.USER, self.question)])]

    def say(
        self,
        text: str | None = None,
        *,
        results: Sequence[str] = (),
        output: OutputType[Parsed] = None,
        **options: Unpack[AnswerKeywords],
    ) -> Completion[Parsed]:
        """Ask something and return the answer. If this fails, the conversation is as before.

        Args:
            text: The question. None is the question at the end of the prompt, which has to be answered first.
            results: What the tools returned that the last answer called, one text for each call, instead of a question.
            output: As for `Engine.generate`; None means that of the chat.
            options: As for `Engine.generate`. `repair`, `salt`, `template_kwargs` and `tools` are those of the whole
                chat.

        Raises:
            ContextLengthExceeded: The conversation needs more positions than the model has.
            PromptCacheError: As `Engine.generate`.
        """
        before, question = self.turns, self._next(text, results)
        (completion,) = answer([self._request(question, results, output, options)], self._requests.executor)
        self._add(before, question, results, completion)
        return completion

    def stream(
        self,
        text: str | None = None,
        *,
        results: Sequence[str] = (),
        output: OutputType[Parsed] = None,
        **options: Unpack[AnswerKeywords],
    ) -> Stream[Parsed]:
        """Ask something and return the answer piece by piece. Arguments and errors are those of `say`.

        The turn is part of the conversation after the last piece. A stream that is closed before leaves no turn.
        """
        before, question = self.turns, self._next(text, results)
        request = self._request(question, results, output, options)
        executor = self._requests.executor
        return Stream(request, executor, lambda completion: self._add(before, question, results, completion))

    def fork(self) -> Chat:
        """Return a chat with the same conversation that continues by itself. No KV is copied."""
        return Chat(self._requests, self.prompt, self.options, self.turns, self.question)

    def rewind(self, n: int = 1) -> None:
        """Forget the last `n` questions with their answers.

        Raises:
            InvalidValue: The chat has fewer questions.
        """
        _TURNS.check("n", n, InvalidValue)
        if n > len(self.turns):
            raise InvalidValue(f"n={n}: the chat has {counted(len(self.turns), 'question')}")
        self.turns = self.turns[:-n]

    def with_prompt(self, prompt: Prompt) -> Chat:
        """Return a chat with the same turns over another selection of modules or other arguments.

        The turns of the prompt come first. If the chat has no turns, the new prompt's question is its question.
        The next answer prefills all tokens above the first difference; its usage says how many.
        """
        if not isinstance(prompt, Prompt):
            raise InvalidValue(f"prompt={shown(prompt)}: a Prompt is expected; Prompt.from_file reads documents")
        return Chat.over(self._requests, prompt, self.options, self.turns)

    def save(self, path: str | Path) -> None:
        """Write the conversation as JSON to a file, for `Engine.load_chat`. The salt and the KV are not written.

        Args:
            path: The file. It is replaced; after an error it is as before.

        Raises:
            OSError: The file cannot be written.
            PromptError: A text of the prompt cannot be written as XML.
        """
        PATH.check("path", path, InvalidValue)
        repair = self.options.get("repair")
        saved = SavedChat(prompt=self.prompt, question=self.question, turns=self.turns, repair=repair)
        write_chat(expand_home(path), saved)

    @classmethod
    def load(cls, requests: RequestBuilder, path: str | Path, options: OptionKeywords) -> Chat:
        """Return the chat that `save` wrote, with further options; `Engine.load_chat` calls this."""
        PATH.check("path", path, InvalidValue)
        file = expand_home(path)
        saved, tools = read_chat(file), read_tools(options.get("tools") or ())
        turns = tuple(_with_own_tokens(each, requests, tools) for each in saved.turns)
        try:
            return cls(requests, saved.prompt, {"repair": saved.repair, **options}, turns, saved.question)
        except InvalidValue as error:
            raise not_a_chat(file, error) from None

    def _next(self, text: str | None, results: Sequence[str]) -> str:
        """Return the next question: that of the prompt comes first. It is empty if there are results instead."""
        _RESULTS.check("results", results, InvalidValue)
        if results:
            num_calls = len(self.turns[-1].tool_calls) if self.turns else 0
            if text is not None or len(results) != num_calls:
                given = f"{counted(len(results), 'result')}{'' if text is None else ' and a text'}"
                raise InvalidValue(f"{given}: the last answer has {counted(num_calls, 'call')}; give a result for each")
            return ""
        if text is None and self.question is not None:
            return self.question
        if text is None:
            raise InvalidValue("say() needs a text: the prompt of this chat has no question that is not answered")
        if self.question is not None:
            raise InvalidValue("the prompt of this chat ends with a question: answer it first with say(), without text")
        return text

    def _request(self, text: str, results: Sequence[str], output: OutputType[Any], options: AnswerKeywords) -> Request:
        TEXT.check("text", text, InvalidValue)
        for name in _OF_CHAT:
            if name in options:
                raise InvalidGeneration(f"'{name}' is an option of the whole chat: engine.chat(…, {name}=…)")
        given: OptionKeywords = {**self.options, **options}
        asked = self._requests.read(given if output is None else {**given, "output": output})
        chat = ChatPrompt(prompt=self.prompt, turns=self.turns, question=text, results=tuple(results))
        try:
            return self._requests.build(chat, asked)
        except ContextLengthExceeded as error:
            raise ContextLengthExceeded(
                f"{error}; forget the last questions (rewind), start a new chat, or use fewer modules (with_prompt)"
            ) from None

    def _add(self, before: tuple[ChatTurn, ...], question: str, results: Sequence[str], completion: Completion) -> None:
        if self.turns is not before:
            raise InvalidValue("the chat went on while this answer was generated: use chat.fork() for a second thread")
        turn = ChatTurn(
            question=question,
            answer=completion.text,
            token_ids=completion.token_ids,
            reasoning=completion.reasoning,
            tool_calls=completion.tool_calls,
            results=tuple(results),
        )
        self.turns, self.question = (*before, turn), None


def _with_own_tokens(turn: ChatTurn, requests: RequestBuilder, tools: Sequence[Tool]) -> ChatTurn:
    """Return a turn whose answer is the text of its tokens: an edited one, or one of another tokenizer, gets others."""
    tokenizer = requests.tokenizer
    others = replace(turn, token_ids=tuple(tokenizer.tokenize(turn.answer)))
    if any(each >= requests.executor.model.num_known_tokens for each in turn.token_ids):
        return others
    text = whole_text(requests.text(requests.end_ids), turn.token_ids)
    said = (turn.reasoning, turn.answer, turn.tool_calls)
    names = frozenset(each.name for each in turn.tool_calls)
    reader = AnswerReader(
        reasoning_tags=tokenizer.reasoning_tags,
        has_channels=has_channels(tokenizer),
        tool_names=names,
        call_style=call_style(tokenizer, tools) if names else CallStyle(),
    )
    is_own = any(replace(reader, reasoning_is_open=each).parts(text) == said for each in (False, True))
    return turn if is_own else others


def chat_prompt(source: Any) -> Prompt:
    """Return the prompt below a conversation; None means the built-in empty schema."""
    return Prompt(CHAT_SCHEMA) if source is None else open_prompt(source)
