"""The form of OpenAI's responses: the items of an answer, and events for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from promptcache.server.answer import AnswerDelta, AnswerForm, AnswerItem, ServedAnswer, event_text, json_text
from promptcache.server.errors import ApiError

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The items with text, with the type of their part."""

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
"""Of the ids of items."""


class ResponseForm(AnswerForm):
    """The form of responses."""

    def __init__(
        self,
        answer: ServedAnswer,
        *,
        echo: Mapping[str, Any],
        keep: Callable[[str, Mapping[str, Any]], None],
        num_tokens: Callable[[str], int],
    ) -> None:
        """Create a form.

        Args:
            answer: The answer.
            echo: Fields of the request, which the response repeats.
            keep: Keeps the answer, as a message of a chat, under the id of the response.
            num_tokens: Returns the number of tokens of a text.
        """
        super().__init__(answer)
        self._row, self._echo, self._keep, self._num_tokens = answer.rows[0], echo, keep, num_tokens
        self._id = f"resp_{answer.key}"
        self._num_events = 0

    def whole(self) -> Mapping[str, Any]:
        """Return the response, and keep it."""
        row, (prompt, cached, generated) = self._row, self.answer.usage
        text, reasoning = row.text("message"), row.text("reasoning")
        message = {"role": "assistant", "content": text, "reasoning_content": reasoning}
        self._keep(self._id, {**message, "tool_calls": [each.call for each in row.calls]})
        return {
            **self._response(self._status),
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": generated,
                "output_tokens_details": {"reasoning_tokens": self._num_tokens(reasoning)},
                "total_tokens": prompt + generated,
            },
            "prompt_cache": self.answer.cache_data(row),
        }

    def begin(self) -> Iterable[str]:
        response = self._response("in_progress")
        return [self._event(f"response.{each}", response=response) for each in ("created", "in_progress")]

    def add(self, index: int, deltas: Sequence[AnswerDelta]) -> Iterator[str]:
        """Yield deltas of items, their starts, and the ends of those before them."""
        for item, text, begins in deltas:
            if begins:
                if item.index:
                    yield from self._end_item(self._row.items[item.index - 1], "completed")
                yield self._item_event("output_item.added", item, item=self._data(item, "in_progress", is_new=True))
                if item.kind in _PARTS:
                    yield self._part_event("content_part.added", item, part=_part(item, ""))
            if text:
                yield self._text_event("delta", item, delta=text)

    def end_row(self, index: int) -> Iterator[str]:
        for item in self._row.items[-1:]:
            yield from self._end_item(item, self._status)

    def end(self) -> Iterator[str]:
        yield self._event(f"response.{self._status}", response=self.whole())

    def fail(self, error: ApiError) -> str:
        return self._event("error", code=error.code, message=error.message, param=error.param)

    @property
    def _status(self) -> str:
        return "incomplete" if self._row.finish == "length" else "completed"

    def _end_item(self, item: AnswerItem, status: str) -> Iterator[str]:
        if item.kind == "function_call":
            yield self._text_event("done", item, name=item.name, arguments=item.text)
        else:
            yield self._text_event("done", item, text=item.text)
            yield self._part_event("content_part.done", item, part=_part(item, item.text))
        yield self._item_event("output_item.done", item, item=self._data(item, status))

    def _text_event(self, step: str, item: AnswerItem, **fields: Any) -> str:
        if item.kind == "function_call":
            return self._item_event(f"function_call_arguments.{step}", item, item_id=self._item_id(item), **fields)
        more: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
        return self._part_event(f"{_PARTS[item.kind]}.{step}", item, **fields, **more)

    def _part_event(self, event: str, item: AnswerItem, **fields: Any) -> str:
        return self._item_event(event, item, item_id=self._item_id(item), content_index=0, **fields)

    def _item_event(self, event: str, of: AnswerItem, /, **fields: Any) -> str:
        return self._event(f"response.{event}", output_index=of.index, **fields)

    def _event(self, event: str, /, **fields: Any) -> str:
        self._num_events += 1
        return event_text(json_text({"type": event, "sequence_number": self._num_events - 1, **fields}), event)

    def _item_id(self, item: AnswerItem) -> str:
        return f"{_PREFIXES[item.kind]}_{item.key}"

    def _data(self, item: AnswerItem, status: str, *, is_new: bool = False) -> dict[str, Any]:
        """Return an item as data; a new one without its text or arguments."""
        made = {"type": item.kind, "id": self._item_id(item)}
        if item.kind == "function_call":
            arguments = "" if is_new else item.text
            return {**made, "call_id": item.call["id"], "name": item.name, "arguments": arguments, "status": status}
        more: dict[str, Any] = {"role": "assistant"} if item.kind == "message" else {"summary": []}
        return {**made, "status": status, **more, "content": [] if is_new else [_part(item, item.text)]}

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self.answer.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.answer.model,
            "output": [
                self._data(each, "completed" if each is not self._row.items[-1] else status) for each in self._row.items
            ],
            "usage": None,
            **self._echo,
        }


def _part(item: AnswerItem, text: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if item.kind == "message" else {}
    return {"type": _PARTS[item.kind], "text": text, **more}
