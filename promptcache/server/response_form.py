"""The form of OpenAI's responses: a list of items, and events for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from promptcache.answers import SplitText
from promptcache.server.answer_form import AnswerCall, AnswerForm, ServedAnswer, event_text, json_text
from promptcache.server.choices import call_data
from promptcache.server.errors import ApiError

_PARTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The items with text, with the type of their part."""

_PREFIXES = {"message": "msg", "reasoning": "rs"}
"""Of the ids of these items."""


class ResponseForm(AnswerForm):
    """The form of responses: a list of items, of which the last may grow."""

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
        self._output: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item may grow
        self._num_events = 0

    def whole(self) -> Mapping[str, Any]:
        """Return the response."""
        for _ in (*self.add(0, self._row.parts), *self.end_row(0)):
            pass
        return self._ended()

    def begin(self) -> Iterator[str]:
        """Yield the response without its output."""
        response = self._response("in_progress")
        yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def add(self, index: int, piece: SplitText) -> Iterator[str]:
        """Yield deltas of items, and their starts."""
        for kind, text in (("reasoning", piece.reasoning), ("message", piece.answer)):
            if text:
                yield from self._open(kind)
                part = self._output[-1]["content"][0]
                part["text"] += text
                yield self._text_event("delta", delta=text)
        for number, name, arguments in piece.calls:
            if name:
                yield from self._close("completed")
                key = self._row.call_key(number)
                ids = {"id": f"fc_{key}", "call_id": call_data(AnswerCall(key, name, ""))["id"]}
                item = {"type": "function_call", **ids, "name": name, "arguments": "", "status": "in_progress"}
                self._output.append(item)
                self._is_open = True
                yield self._item_event("response.output_item.added", item=item)
            else:
                item = self._output[-1]
                item["arguments"] += arguments
                yield self._item_event("response.function_call_arguments.delta", item_id=item["id"], delta=arguments)

    def end_row(self, index: int) -> Iterator[str]:
        """Yield the end of the last item."""
        yield from self._close("incomplete" if self._row.finish == "length" else "completed")

    def end(self) -> Iterator[str]:
        """Yield the response."""
        response = self._ended()
        yield self._event(f"response.{response['status']}", response=response)

    def fail(self, error: ApiError) -> str:
        """Return the error as an event."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _open(self, kind: str) -> Iterator[str]:
        """Begin an item with text, unless the last one is of this type."""
        if self._is_open and self._output[-1]["type"] == kind:
            return
        yield from self._close("completed")
        self._is_open = True
        item: dict[str, Any] = {"type": kind, "id": f"{_PREFIXES[kind]}_{self.answer.key}", "status": "in_progress"}
        part: dict[str, Any] = {"type": _PARTS[kind], "text": ""}
        if kind == "message":
            item["role"] = "assistant"
            part |= {"annotations": [], "logprobs": []}
        else:
            item["summary"] = []
        self._output.append({**item, "content": []})
        yield self._item_event("response.output_item.added", item=self._output[-1])
        self._output[-1]["content"] = [part]
        yield self._part_event("response.content_part.added", part=part)

    def _close(self, status: str) -> Iterator[str]:
        """End the last item, if it may grow."""
        if not self._is_open:
            return
        self._is_open = False
        item = self._output[-1]
        item["status"] = status
        if item["type"] == "function_call":
            fields = {"item_id": item["id"], "name": item["name"], "arguments": item["arguments"]}
            yield self._item_event("response.function_call_arguments.done", **fields)
            yield self._item_event("response.output_item.done", item=item)
            return
        (part,) = item["content"]
        yield self._text_event("done", text=part["text"])
        yield self._part_event("response.content_part.done", part=part)
        yield self._item_event("response.output_item.done", item=item)

    def _text_event(self, step: str, **fields: Any) -> str:
        part = _PARTS[self._output[-1]["type"]]
        if part == "output_text":
            fields["logprobs"] = []
        return self._part_event(f"response.{part}.{step}", **fields)

    def _part_event(self, event: str, /, **fields: Any) -> str:
        return self._item_event(event, item_id=self._output[-1]["id"], content_index=0, **fields)

    def _item_event(self, event: str, /, **fields: Any) -> str:
        return self._event(event, output_index=len(self._output) - 1, **fields)

    def _event(self, event: str, /, **fields: Any) -> str:
        self._num_events += 1
        return event_text(json_text({"type": event, "sequence_number": self._num_events - 1, **fields}), event)

    def _ended(self) -> dict[str, Any]:
        """Return the response at its end, and keep it."""
        text = self._row.parts
        message = {"role": "assistant", "content": text.answer, "reasoning_content": text.reasoning}
        self._keep(self._id, {**message, "tool_calls": list(map(call_data, self._row.calls))})
        usage = self.answer.usage
        return {
            **self._response("incomplete" if self._row.finish == "length" else "completed"),
            "usage": {
                "input_tokens": usage.num_prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.num_cached_tokens},
                "output_tokens": usage.num_generated_tokens,
                "output_tokens_details": {"reasoning_tokens": self._num_tokens(text.reasoning)},
                "total_tokens": usage.num_prompt_tokens + usage.num_generated_tokens,
            },
            "prompt_cache": self.answer.cache_data(self._row),
        }

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self.answer.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.answer.model,
            "output": self._output,
            "usage": None,
            **self._echo,
        }
