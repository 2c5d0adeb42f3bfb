"""The forms of OpenAI's chats and completions: answers are `choices`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from promptcache.server.answer import (
    AnswerDelta,
    AnswerForm,
    AnswerRow,
    AnswerToken,
    ScoredToken,
    ServedAnswer,
    event_text,
    json_text,
)
from promptcache.server.errors import ApiError


def chat_logprobs(tokens: Sequence[AnswerToken]) -> dict[str, Any]:
    """Return `logprobs` of a choice of a chat."""

    def entry(token: ScoredToken) -> dict[str, Any]:
        return {"token": token.text, "logprob": token.logprob, "bytes": list(token.content)}

    content = [{**entry(each.chosen), "top_logprobs": list(map(entry, each.top))} for each in tokens]
    return {"content": content, "refusal": None}


def plain_logprobs(tokens: Sequence[AnswerToken]) -> dict[str, Any]:
    """Return `logprobs` of a choice of a completion. Each token is among its most probable ones, as OpenAI has it."""

    def name_of(token: ScoredToken) -> str:
        return token.text if token.is_text else f"bytes:{token.text}"

    tops = []
    for each in tokens:
        ids, top = dict[str, int](), dict[str, float]()
        for token in (each.chosen, *each.top):
            name = name_of(token)
            is_taken = ids.setdefault(name, token.token_id) != token.token_id
            top[f"token_id:{token.token_id}" if is_taken else name] = token.logprob
        tops.append(top)
    return {
        "tokens": [name_of(each.chosen) for each in tokens],
        "token_logprobs": [each.chosen.logprob for each in tokens],
        "top_logprobs": tops,
        "text_offset": [each.start for each in tokens],
    }


class ChatForm(AnswerForm):
    """The form of `/v1/chat/completions`.

    Attributes:
        prefix: Of the ids of answers.
        kinds: The field `object` of a whole answer, and that of a chunk.
        logprobs: Returns the log-probabilities of tokens.
    """

    prefix = "chatcmpl"
    kinds = ("chat.completion", "chat.completion.chunk")
    logprobs = staticmethod(chat_logprobs)

    def __init__(self, answer: ServedAnswer) -> None:
        super().__init__(answer)
        self._head = {"id": f"{self.prefix}-{answer.key}", "created": answer.created, "model": answer.model}
        self._usage_of_chunk = {"usage": None} if answer.has_usage else {}
        head = json_text({**self._head, "object": self.kinds[1]})
        self._head_of_chunk = head.removesuffix("}")  # the same in all chunks

    def whole(self) -> Mapping[str, Any]:
        return {
            **self._head,
            "object": self.kinds[0],
            "choices": [
                {
                    "index": index,
                    **self.content(row),
                    "logprobs": self.logprobs(row.tokens()) if self.answer.has_logprobs else None,
                    "finish_reason": row.finish,
                }
                for index, row in enumerate(self.answer.rows)
            ],
            "usage": self._usage,
            "prompt_cache": self.answer.cache_data(self.answer.rows[0]),
        }

    def begin(self) -> Iterable[str]:
        """Return the role of each choice."""
        role = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk([self._part(index, role)]) for index in range(len(self.answer.rows))]

    def add(self, index: int, deltas: Sequence[AnswerDelta]) -> Iterator[str]:
        """Yield a chunk with text, and one for each call."""
        row, calls = self.answer.rows[index], self.answer.rows[index].calls
        text, reasoning = (
            "".join(each.text for each in deltas if each.item.kind == kind) for kind in ("message", "reasoning")
        )
        parts = [self.delta(text, reasoning)] if text or reasoning else []
        called = [each.item for each in deltas if each.item.kind == "function_call"]
        parts += [{"delta": {"tool_calls": [{"index": calls.index(item), **item.call}]}} for item in called]
        tokens = row.tokens() if parts else ()
        for part in parts:
            yield self._chunk([self._part(index, part, tokens)])
            tokens = ()

    def end_row(self, index: int) -> Iterator[str]:
        """Yield a chunk with the finish reason."""
        row = self.answer.rows[index]
        ended = self._part(index, self.delta("", ""), row.tokens(), row.finish)
        yield self._chunk([ended], prompt_cache=self.answer.cache_data(row))

    def end(self) -> Iterator[str]:
        """Yield the usage, if it was asked for, and the mark of the end."""
        if self.answer.has_usage:
            yield self._chunk([], usage=self._usage)
        yield event_text("[DONE]")

    def fail(self, error: ApiError) -> str:
        return event_text(json_text(error.body))

    def content(self, row: AnswerRow) -> Mapping[str, Any]:
        """Return the fields of a choice that hold its text and its calls of tools."""
        text, reasoning = row.text("message"), row.text("reasoning")
        content = None if row.calls and not text else text
        message = {"role": "assistant", "content": content, "refusal": None}
        message |= {"reasoning_content": reasoning} if reasoning else {}
        return {"message": {**message, **({"tool_calls": [each.call for each in row.calls]} if row.calls else {})}}

    def delta(self, text: str, reasoning: str) -> Mapping[str, Any]:
        """Return the fields of a chunk that hold its text."""
        return {
            "delta": {
                **({"content": text} if text else {}),
                **({"reasoning_content": reasoning} if reasoning else {}),
            }
        }

    @property
    def _usage(self) -> dict[str, Any]:
        prompt, cached, generated = self.answer.usage
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _chunk(self, choices: Sequence[Mapping[str, Any]], **fields: Any) -> str:
        data = {**self._usage_of_chunk, "choices": choices, **fields}
        return event_text(f"{self._head_of_chunk},{json_text(data).removeprefix('{')}")

    def _part(
        self, index: int, delta: Mapping[str, Any], tokens: Sequence[AnswerToken] = (), finish: str | None = None
    ) -> dict[str, Any]:
        return {
            "index": index,
            **delta,
            "logprobs": self.logprobs(tokens) if tokens else None,
            "finish_reason": finish,
        }


class TextForm(ChatForm):
    """The form of `/v1/completions`, which have no roles, reasoning and calls."""

    prefix = "cmpl"
    kinds = ("text_completion", "text_completion")
    logprobs = staticmethod(plain_logprobs)

    def begin(self) -> Iterable[str]:
        return ()

    def content(self, row: AnswerRow) -> Mapping[str, Any]:
        return {"text": row.text("message")}

    def delta(self, text: str, reasoning: str) -> Mapping[str, Any]:
        return {"text": text}
