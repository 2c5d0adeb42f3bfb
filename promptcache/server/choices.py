"""The forms of OpenAI's chats and completions: answers are `choices`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from promptcache.answers import SplitText
from promptcache.server.answer_form import AnswerCall, AnswerForm, AnswerRow, ServedAnswer, event_text, json_text
from promptcache.server.errors import ApiError
from promptcache.server.logprobs import AnswerToken, chat_logprobs, plain_logprobs


class _ChoicesForm(AnswerForm):
    """Base class of both forms.

    Attributes:
        prefix: Of the ids of answers.
        kinds: The field `object` of a whole answer, and that of a chunk.
    """

    prefix: ClassVar[str]
    kinds: ClassVar[tuple[str, str]]

    def __init__(self, answer: ServedAnswer, *, has_logprobs: bool, has_usage: bool) -> None:
        """Create a form.

        Args:
            answer: The answer.
            has_logprobs: Whether choices have log-probabilities.
            has_usage: Whether a stream has the usage in a chunk of its own.
        """
        super().__init__(answer)
        self._has_logprobs, self._has_usage = has_logprobs, has_usage
        self._head = {"id": f"{self.prefix}-{answer.key}", "created": answer.created, "model": answer.model}
        self._usage_of_chunk = {"usage": None} if has_usage else {}
        head = json_text({**self._head, "object": self.kinds[1]})
        self._head_of_chunk = head.removesuffix("}")  # the same in all chunks

    def whole(self) -> Mapping[str, Any]:
        """Return the answer."""
        return {
            **self._head,
            "object": self.kinds[0],
            "choices": [self._choice(index, row) for index, row in enumerate(self.answer.rows)],
            "usage": self._usage,
            "prompt_cache": self.answer.cache_data(self.answer.rows[0]),
        }

    def add(self, index: int, piece: SplitText) -> Iterator[str]:
        """Yield a chunk with text, and one for each piece of a call."""
        row = self.answer.rows[index]
        deltas = [self.delta(piece)] if piece.answer or piece.reasoning else []
        for number, name, arguments in piece.calls:
            call = (
                call_data(AnswerCall(row.call_key(number), name, ""))
                if name
                else {"function": {"arguments": arguments}}
            )
            deltas.append({"delta": {"tool_calls": [{"index": number, **call}]}})
        tokens: Sequence[AnswerToken] = row.tokens()
        for delta in deltas:
            yield self._chunk(choices=[self._part(index, delta, tokens)])
            tokens = ()

    def end_row(self, index: int) -> Iterator[str]:
        """Yield a chunk with the finish reason."""
        row = self.answer.rows[index]
        ended = self._part(index, self.delta(SplitText("", "")), row.tokens(), row.finish)
        yield self._chunk(choices=[ended], prompt_cache=self.answer.cache_data(row))

    def end(self) -> Iterator[str]:
        """Yield the usage, if it was asked for, and the mark of the end."""
        if self._has_usage:
            yield self._chunk(choices=[], usage=self._usage)
        yield event_text("[DONE]")

    def fail(self, error: ApiError) -> str:
        """Return the error object as an event."""
        return event_text(json_text(error.body))

    @abstractmethod
    def content(self, text: SplitText, calls: Sequence[AnswerCall]) -> Mapping[str, Any]:
        """Return the fields of a choice that hold its text and its calls of tools."""

    @abstractmethod
    def delta(self, text: SplitText) -> Mapping[str, Any]:
        """Return the fields of a chunk that hold its text."""

    @abstractmethod
    def logprobs(self, tokens: Sequence[AnswerToken]) -> Mapping[str, Any]:
        """Return the log-probabilities of a choice or chunk."""

    @property
    def _usage(self) -> dict[str, Any]:
        usage = self.answer.usage
        return {
            "prompt_tokens": usage.num_prompt_tokens,
            "completion_tokens": usage.num_generated_tokens,
            "total_tokens": usage.num_prompt_tokens + usage.num_generated_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        }

    def _choice(self, index: int, row: AnswerRow) -> dict[str, Any]:
        logprobs = self.logprobs(row.tokens()) if self._has_logprobs else None
        content = self.content(row.parts, row.calls)
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": row.finish}

    def _chunk(self, **fields: Any) -> str:
        return event_text(f"{self._head_of_chunk},{json_text({**self._usage_of_chunk, **fields}).removeprefix('{')}")

    def _part(
        self, index: int, delta: Mapping[str, Any], tokens: Sequence[AnswerToken] = (), finish: str | None = None
    ) -> dict[str, Any]:
        logprobs = self.logprobs(tokens) if tokens else None
        return {"index": index, **delta, "logprobs": logprobs, "finish_reason": finish}


class ChatForm(_ChoicesForm):
    """The form of `/v1/chat/completions`."""

    prefix = "chatcmpl"
    kinds = ("chat.completion", "chat.completion.chunk")

    def begin(self) -> Iterator[str]:
        """Yield the role of each choice."""
        for index in range(len(self.answer.rows)):
            yield self._chunk(choices=[self._part(index, {"delta": {"role": "assistant", "content": ""}})])

    def content(self, text: SplitText, calls: Sequence[AnswerCall]) -> Mapping[str, Any]:
        """Return the message of the assistant."""
        content = None if calls and not text.answer else text.answer
        message = {"role": "assistant", "content": content, "refusal": None, **_reasoning(text)}
        return {"message": {**message, "tool_calls": list(map(call_data, calls))} if calls else message}

    def delta(self, text: SplitText) -> Mapping[str, Any]:
        """Return a part of the message."""
        return {"delta": {**({"content": text.answer} if text.answer else {}), **_reasoning(text)}}

    def logprobs(self, tokens: Sequence[AnswerToken]) -> Mapping[str, Any]:
        """Return an entry for each token."""
        return chat_logprobs(tokens)


class TextForm(_ChoicesForm):
    """The form of `/v1/completions`."""

    prefix = "cmpl"
    kinds = ("text_completion", "text_completion")

    def begin(self) -> Iterator[str]:
        """Yield nothing."""
        return iter(())

    def content(self, text: SplitText, calls: Sequence[AnswerCall]) -> Mapping[str, Any]:
        """Return the text; there are no calls."""
        return {"text": text.answer}

    def delta(self, text: SplitText) -> Mapping[str, Any]:
        """Return the text."""
        return {"text": text.answer}

    def logprobs(self, tokens: Sequence[AnswerToken]) -> Mapping[str, Any]:
        """Return lists of tokens and log-probabilities."""
        return plain_logprobs(tokens)


def call_data(call: AnswerCall) -> dict[str, Any]:
    """Return a call of a tool in the form of chats."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{call.key}", "type": "function", "function": function}


def _reasoning(text: SplitText) -> dict[str, str]:
    return {"reasoning_content": text.reasoning} if text.reasoning else {}
