"""An answer as it grows, and the base class of its forms over HTTP. Each endpoint has a form."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from promptcache.answers import AnswerSplit, IncrementalText, SplitText, TokenLogprobs, whole_text
from promptcache.decode import Completion, KVSource
from promptcache.server.errors import ApiError
from promptcache.server.logprobs import AnswerLogprobs, AnswerToken

_LINE_ENDS = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}
"""Escapes for characters at which some clients cut lines, as Python's `splitlines` does. JSON escapes the others."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class AnswerCall(NamedTuple):
    """A call of a tool in an answer; forms put a prefix before `key` for its id."""

    key: str
    name: str
    arguments: str


@dataclass(slots=True, kw_only=True)
class AnswerRow:
    """One of the answers to a request, as it grows.

    Attributes:
        num_taken: Characters of the answer that were taken from `text`.
        num_tokens: Tokens that came one by one, before the completion.
        logprobs: The tokens with log-probabilities, if these were asked for.
    """

    text: IncrementalText
    decode: Callable[[Sequence[int]], str]
    split: AnswerSplit
    logprobs: AnswerLogprobs
    call_keys: list[str] = field(default_factory=list)
    pieces: list[SplitText] = field(default_factory=list)
    num_taken: int = 0
    completion: Completion | None = None
    num_tokens: int = 0
    last_token_at: float | None = None

    @property
    def num_generated_tokens(self) -> int:
        """The number of tokens up to now; those of a whole answer may come with it."""
        return self.num_tokens if self.completion is None else self.completion.usage.num_generated_tokens

    @property
    def finish(self) -> str | None:
        """Why the answer has ended, in the words of OpenAI's chats; None if it goes on."""
        if self.completion is None:
            return None
        if self.split.calls and not self.split.is_cut:
            return "tool_calls"
        return "stop" if self.text.stopped else str(self.completion.finish_reason)

    @property
    def calls(self) -> list[AnswerCall]:
        """The calls of tools, once the answer has ended."""
        return [AnswerCall(self.call_key(number), *call) for number, call in enumerate(self.split.calls)]

    def call_key(self, number: int) -> str:
        """Return the key of a call."""
        self.call_keys += [uuid.uuid4().hex for _ in range(len(self.call_keys), number + 1)]
        return self.call_keys[number]

    @property
    def parts(self) -> SplitText:
        """The reasoning and the text up to now."""
        return _joined(self.pieces) if self.pieces else SplitText("", "")

    def add(self, token: int | TokenLogprobs) -> SplitText:
        """Add a token, and return the text that is certain now."""
        if isinstance(token, int):
            return self._taken(self.text.add(token))
        stopped, before = self.text.stopped, self.text.num_known
        piece = self._taken(self.text.add(token.token_id))
        if not stopped:
            self.logprobs.add(token, before, self.text.num_known)
        return piece

    def finish_with(self, completion: Completion) -> SplitText:
        """Set the whole answer, and return the rest of its text."""
        self.completion = completion
        last = self._taken(self.text.finish(whole_text(self.decode, completion.token_ids)))
        rest = self.split.rest()
        self.pieces.append(rest)
        return _joined([last, rest])

    def tokens(self) -> tuple[AnswerToken, ...]:
        """Return the tokens of the text that was taken since the last call."""
        whole = self.completion is not None and not self.text.stopped
        return self.logprobs.take(None if whole else self.num_taken)

    def _taken(self, piece: str) -> SplitText:
        self.num_taken += len(piece)
        split = self.split.add(piece)
        if any(split):
            self.pieces.append(split)
        return split


def _joined(parts: Iterable[SplitText]) -> SplitText:
    reasoning, answer, calls = zip(*parts, strict=True)
    return SplitText("".join(reasoning), "".join(answer), tuple(each for pieces in calls for each in pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerUsage:
    """The tokens of an answer. `num_cached_tokens` of the prompt were not computed for it."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAnswer:
    """What a request is answered with.

    Attributes:
        key: Forms put a prefix before it for the id of the answer.
        model: The id of the model, with the schema.
        rows: The answers: `num_choices` of the first prompt, then those of the next.
    """

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    model: str
    schema: str | None
    rows: tuple[AnswerRow, ...]
    num_choices: int

    @property
    def usage(self) -> AnswerUsage:
        """The tokens of all answers. A prompt with several answers counts once."""
        usages = [row.completion.usage for row in self.rows if row.completion is not None]
        prompt = cached = 0
        for usage in usages[:: self.num_choices]:
            encoded = sum(each.num_tokens for each in usage.modules if each.source is KVSource.MISS)
            reused = usage.num_reused_tokens + usage.num_history_tokens
            prompt += reused + usage.num_new_tokens
            cached += reused - encoded
        return AnswerUsage(
            num_prompt_tokens=prompt,
            num_cached_tokens=cached,
            num_generated_tokens=sum(each.num_generated_tokens for each in usages),
        )

    def cache_data(self, row: AnswerRow) -> dict[str, Any]:
        """Return `prompt_cache` of an answer that has ended."""
        completion = row.completion
        assert completion is not None, "the answer has ended"
        usage, timing = completion.usage, completion.timing
        return {
            "schema": self.schema,
            "schema_version": completion.plan.selection.schema.version,
            "level": completion.level,
            "repair": completion.repair,
            "lossy": completion.lossy,
            "num_repaired_tokens": usage.num_repaired_tokens,
            "num_encoded_tokens": usage.num_encoded_tokens,
            "warnings": [{"code": each.code, "message": each.message} for each in completion.warnings],
            "modules": [asdict(each) for each in usage.modules],
            "timing": {**asdict(timing), "ttft_s": timing.ttft_s},
        }


class AnswerForm(ABC):
    """Base class of the forms of answers: as one object, or as the events of a stream. An answer has a form of its own.

    Attributes:
        keep_alive: What a stream without tokens sends from time to time.
    """

    keep_alive = ": keep-alive\n\n"

    def __init__(self, answer: ServedAnswer) -> None:
        self.answer = answer

    @abstractmethod
    def whole(self) -> Mapping[str, Any]:
        """Return the answer, all of whose rows have ended."""

    @abstractmethod
    def begin(self) -> Iterator[str]:
        """Yield the first events."""

    @abstractmethod
    def add(self, index: int, piece: SplitText) -> Iterator[str]:
        """Yield the events of text and of pieces of calls that were added to a row."""

    @abstractmethod
    def end_row(self, index: int) -> Iterator[str]:
        """Yield the events of a row that has ended."""

    @abstractmethod
    def end(self) -> Iterator[str]:
        """Yield the events after the end of all rows."""

    @abstractmethod
    def fail(self, error: ApiError) -> str:
        """Return the last event of a stream that failed."""


def json_text(data: Mapping[str, Any]) -> str:
    """Return JSON in one line, also for clients that cut lines elsewhere."""
    text = _ENCODER.encode(data)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def event_text(data: str, name: str | None = None) -> str:
    """Return a server-sent event."""
    return f"data: {data}\n\n" if name is None else f"event: {name}\ndata: {data}\n\n"


class EventStream(Response):
    """A response of server-sent events. `close` is called at its end, however it ends."""

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None]) -> None:
        super().__init__(
            headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events one by one."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._close()
