"""Conversations: turns on top of a prompt, each answered from the KV of the turns before it.

A chat holds texts and token IDs, never KV; history keeps that. An answer stays as it was generated and is not tokenized
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from promptcache.diagnostics import (
    FLAG,
    PATH,
    TEXT,
    ContextLengthExceeded,
    InvalidGeneration,
    InvalidValue,
    Unpicklable,
    counted,
    shown,
    whole,
)
from promptcache.kv import expand_home
from promptcache.language import CHAT_SCHEMA, Prompt, Repair, Role, open_prompt
from promptcache.layout import Plan, RequestTokens
from promptcache.runtime.answer import Request, answer, reasoning_split, streaming
from promptcache.runtime.chat_file import ChatKV, SavedChat, kv_folder, load_kv, not_a_chat, read_chat, write_chat
from promptcache.runtime.completion import Completion
from promptcache.runtime.executor import Executor
from promptcache.runtime.hf.options import check_for_stream
from promptcache.runtime.planner import Planner, TemplateOptions, check_template_kwargs
from promptcache.runtime.reasoning import split_answer
from promptcache.runtime.stream import Stream, TokenQueue
from promptcache.runtime.text import whole_text
from promptcache.runtime.turns import ChatTurn, chat_message
from promptcache.tokenizer import Tokenizer

_TURNS = whole(1, unit="questions")
_SALT = TEXT | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEngine:
    """What a chat needs of its engine.

    Attributes:
        request: Returns the request of a plan, for the salt, the options of generation that a caller gave, and the time
            of the call.
    """

    planner: Planner
    executor: Executor
    tokenizer: Tokenizer
    request: Callable[[Plan, str | None, Mapping[str, Any], float], Request]


class Chat(Unpicklable):
    """A conversation over a prompt. Use a chat from one thread at a time; `fork` makes another.

    Attributes:
        prompt: The prompt below the conversation.
        turns: The questions with their answers.
        repair: As for `Engine`.
        salt: As for `Engine.generate`.
        template_kwargs: As for `Engine.generate`.
    """

    _instead = "use save and Engine.load_chat"

    def __init__(
        self,
        engine: ChatEngine,
        prompt: Prompt,
        *,
        turns: tuple[ChatTurn, ...] = (),
        repair: str | None = None,
        salt: str | None = None,
        template_kwargs: TemplateOptions = None,
    ) -> None:
        if repair is not None:
            Repair.parse(repair)
        if any(message.role is None for message in prompt.messages):
            raise InvalidValue("the prompt of a chat has no bare text: pass the text to say()")
        _SALT.check("salt", salt, InvalidValue)
        check_template_kwargs(template_kwargs)
        self.prompt, self.turns, self.repair, self.salt = prompt, turns, repair, salt
        self.template_kwargs = template_kwargs
        self._engine = engine

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self.prompt.schema}: {len(self.turns)} questions>"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as chat messages, those of the prompt included: `{"role": …, "content": …}`.

        An answer with reasoning has it as `reasoning_content`.
        """
        said = [chat_message(each.role or Role.USER, each.text, each.reasoning) for each in self.prompt.messages]
        for turn in self.turns:
            said.append(chat_message(Role.USER, turn.question))
            said.append(chat_message(Role.ASSISTANT, turn.answer, turn.reasoning))
        return said

    def say(self, text: str, **generation: Any) -> Completion:
        """Ask something and return the answer. If this fails, the conversation is as before.

        Args:
            text: The question.
            generation: As for `Engine.generate`. `repair`, `salt` and `template_kwargs` are those of the whole chat.

        Raises:
            ContextLengthExceeded: The conversation needs more positions than the model has.
            As `Engine.generate`.
        """
        before = self.turns
        completion = answer(self._request(text, generation), self._engine.executor)
        self._add(before, text, completion)
        return completion

    def stream(self, text: str, **generation: Any) -> Stream:
        """Ask something and return the answer piece by piece. Arguments and errors are those of `say`.

        The turn is part of the conversation after the last piece. A stream that is closed before leaves no turn.
        """
        check_for_stream(generation, self._engine.executor.model)
        before, request = self.turns, self._request(text, generation)

        def produce(queue: TokenQueue) -> Completion:
            return answer(streaming(request, queue), self._engine.executor)

        return Stream(
            produce,
            request.text,
            reasoning_split(request),
            lambda completion: self._add(before, text, completion),
        )

    def fork(self) -> Chat:
        """Return a chat with the same turns that continues by itself. No KV is copied."""
        return self._with(self.prompt)

    def rewind(self, n: int = 1) -> None:
        """Forget the last `n` questions with their answers.

        Raises:
            InvalidValue: There are not so many.
        """
        _TURNS.check("n", n, InvalidValue)
        if n > len(self.turns):
            raise InvalidValue(f"n={n}: the chat has {counted(len(self.turns), 'question')}")
        self.turns = self.turns[:-n]

    def with_prompt(self, prompt: Prompt) -> Chat:
        """Return a chat with the same turns over another selection of modules or other arguments.

        The next answer prefills what lies above the first difference; its usage says how much.
        """
        if not isinstance(prompt, Prompt):
            raise InvalidValue(f"prompt={shown(prompt)}: a Prompt is expected; load_prompt reads documents")
        return self._with(prompt)

    def _with(self, prompt: Prompt) -> Chat:
        return Chat(
            self._engine,
            prompt,
            turns=self.turns,
            repair=self.repair,
            salt=self.salt,
            template_kwargs=self.template_kwargs,
        )

    def save(self, path: str | Path, *, kv: bool = False) -> None:
        """Write the conversation to a file, for `Engine.load_chat`. The salt is not written.

        Args:
            path: The file. It is replaced.
            kv: Also write the KV that history has of the conversation, to a folder in the format of stores. Its name is
                that of the file with ".kv" at the end. KV of an earlier save is removed from this folder.

        Raises:
            OSError: The file cannot be written.
            PromptError: A text of the prompt cannot be written as XML.
            StoreError: The folder cannot be written.
            An earlier file and its KV are then as before.
        """
        PATH.check("path", path, InvalidValue)
        FLAG.check("kv", kv, InvalidValue)
        engine = self._engine
        own = ChatKV(
            executor=engine.executor,
            recalled=engine.executor.recall(self._tokens(), self.salt, engine.executor.follow())
            if kv and self.turns
            else None,
        )
        saved = SavedChat(
            prompt=self.prompt,
            turns=self.turns,
            repair=self.repair,
            kv_sizes=own.sizes,
            tokenizer=engine.tokenizer.fingerprint,
        )
        write_chat(expand_home(path), saved, own)

    @classmethod
    def load(
        cls, engine: ChatEngine, path: str | Path, salt: str | None = None, template_kwargs: TemplateOptions = None
    ) -> Chat:
        """Return the chat that `save` wrote; `Engine.load_chat` calls this."""
        PATH.check("path", path, InvalidValue)
        _SALT.check("salt", salt, InvalidValue)
        file = expand_home(path)
        saved, tokenizer = read_chat(file), engine.tokenizer
        turns = saved.turns
        if saved.tokenizer != tokenizer.fingerprint:
            turns = tuple(_tokenized_again(turn, tokenizer) for turn in turns)
        known = engine.executor.model.num_known_tokens
        if any(each >= known for turn in turns for each in turn.token_ids):
            raise not_a_chat(file, f"an answer has tokens that this model does not know, from {known} on")
        turns = tuple(each if _is_as_saved(each, tokenizer) else _tokenized_again(each, tokenizer) for each in turns)
        try:
            chat = cls(
                engine, saved.prompt, turns=turns, repair=saved.repair, salt=salt, template_kwargs=template_kwargs
            )
        except InvalidValue as error:
            raise not_a_chat(file, error) from None
        if saved.kv_sizes and turns:
            load_kv(engine.executor, chat._tokens(), salt, kv_folder(file), saved.kv_sizes)
        return chat

    def _request(self, text: str, generation: Mapping[str, Any]) -> Request:
        TEXT.check("text", text, InvalidValue)
        for name in ("repair", "salt", "template_kwargs"):
            if name in generation:
                raise InvalidGeneration(f"'{name}' is an option of the whole chat: engine.chat(…, {name}=…)")
        started = time.perf_counter()
        plan = self._engine.planner.plan_chat(self.prompt, self.turns, text, self.repair, self.template_kwargs)
        try:
            return self._engine.request(plan, self.salt, generation, started)
        except ContextLengthExceeded as error:
            raise ContextLengthExceeded(
                f"{error}; forget the last questions (rewind), start a new chat, or use fewer modules (with_prompt)"
            ) from None

    def _tokens(self) -> RequestTokens:
        """Return the tokens of the conversation up to its last answer."""
        *before, last = self.turns
        plan = self._engine.planner.plan_chat(self.prompt, before, last.question, self.repair, self.template_kwargs)
        tokens = plan.tokens
        return RequestTokens(
            parts=tokens.parts,
            token_ids=(*tokens.token_ids, *last.token_ids),
            position_ids=(*tokens.position_ids, *range(plan.stop, plan.stop + len(last.token_ids))),
        )

    def _add(self, before: tuple[ChatTurn, ...], question: str, completion: Completion) -> None:
        if self.turns is not before:
            raise InvalidValue("the chat went on while this answer was generated: use chat.fork() for a second thread")
        turn = ChatTurn(
            question=question,
            answer=completion.text,
            token_ids=completion.token_ids,
            reasoning=completion.reasoning,
        )
        self.turns = (*before, turn)


def _is_as_saved(turn: ChatTurn, tokenizer: Tokenizer) -> bool:
    """Return whether the answer of a turn is the text of its tokens; an edited answer is not."""
    text = whole_text(tokenizer.decode, turn.token_ids)
    said = (turn.reasoning, turn.answer)
    return said in (split_answer(text, tokenizer.reasoning_tags, is_open=each) for each in (False, True))


def _tokenized_again(turn: ChatTurn, tokenizer: Tokenizer) -> ChatTurn:
    return replace(turn, token_ids=tuple(tokenizer.tokenize(turn.answer)))


def chat_prompt(source: Any) -> Prompt:
    """Return the prompt below a conversation; None means the built-in empty schema."""
    return Prompt(CHAT_SCHEMA) if source is None else open_prompt(source)
