"""An answer as it grows: tokens add deltas to the items of each row. Each API writes them in a form of its own."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from promptcache.answers import AnswerReader, AnswerSplit, IncrementalText, SplitText, TokenLogprobs, whole_text
from promptcache.decode import Completion, KVSource
from promptcache.server.errors import ApiError
from promptcache.tokenizer import Tokenizer

_LINE_ENDS = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}
"""Escapes for characters at which some clients cut lines, as Python's `splitlines` does. JSON escapes the others."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_REPLACEMENT = "�"
_Kind: TypeAlias = Literal["reasoning", "message", "function_call"]


@dataclass(slots=True, eq=False)
class AnswerItem:
    """A part of an answer: reasoning or text, which grow, or a call with its name; `text` has its arguments."""

    kind: _Kind
    index: int
    name: str = ""
    text: str = ""
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def call(self) -> dict[str, Any]:
        """A call of a tool, as far as it is known, in the form of chats."""
        return {
            "id": f"call_{self.key}",
            "type": "function",
            "function": {"name": self.name, "arguments": self.text},
        }


class AnswerDelta(NamedTuple):
    """A text that is added to an item; the first one of an item begins it."""

    item: AnswerItem
    text: str
    begins: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A token with its log-probability. `content` are the bytes that it adds; perhaps a part of a character."""

    token_id: int
    content: bytes
    logprob: float

    @property
    def text(self) -> str:
        """The text, with an escape for each byte that is a part of a character."""
        return self.content.decode(errors="backslashreplace")

    @property
    def is_text(self) -> bool:
        """Whether the token consists of whole characters."""
        return self.text.encode() == self.content


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerToken:
    """One token of an answer.

    Attributes:
        start: Number of characters of the answer before the token.
        top: The most probable tokens, the most probable first.
    """

    start: int
    chosen: ScoredToken
    top: tuple[ScoredToken, ...]


class AnswerLogprobs:
    """The tokens of one answer that were not sent yet. A token is sent with the text that it begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # the last token: some tokenizers put spaces between tokens only
        self._tokens: list[AnswerToken] = []

    def add(self, token: TokenLogprobs, num_before: int, num_known: int) -> None:
        """Add a token. Control tokens are no part of an answer.

        Args:
            num_before: Characters of the answer that were known before the token.
            num_known: Characters that are known with it. Broken characters before the token become known with it, too.
        """
        if token.token_id in self._tokenizer.control_ids:
            return
        made = AnswerToken(
            start=max(num_before, num_known - len(self._text(token.token_id))),
            chosen=self._scored(token.token_id, token.logprob),
            top=tuple(self._scored(token_id, logprob) for token_id, logprob in token.top),
        )
        self._before = [token.token_id]
        self._tokens.append(made)

    def take(self, stop: int | None = None) -> tuple[AnswerToken, ...]:
        """Return and forget the tokens that begin before character `stop`; all of them if it is None."""
        number = len(self._tokens) if stop is None else sum(each.start < stop for each in self._tokens)
        taken = tuple(self._tokens[:number])
        del self._tokens[:number]
        return taken

    def _scored(self, token_id: int, logprob: float) -> ScoredToken:
        text, own = self._text(token_id), self._tokenizer.token_bytes(token_id)
        is_text = _REPLACEMENT not in own.decode(errors="replace") + text
        return ScoredToken(token_id=token_id, content=text.encode() if is_text else own, logprob=logprob)

    def _text(self, token_id: int) -> str:
        before, text = (self._tokenizer.detokenize(each) for each in (self._before, [*self._before, token_id]))
        if text.startswith(before):
            return text[len(before) :]
        return self._tokenizer.detokenize([token_id])


class AnswerRow:
    """One of the answers to a request, as it grows.

    Attributes:
        items: Its parts in order; only the last one grows.
        completion: What the engine returned at its end.
        num_tokens: Tokens that came one by one, before the completion.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]) -> None:
        self.split: AnswerSplit = AnswerReader().split()
        self.items: list[AnswerItem] = []
        self.completion: Completion | None = None
        self.num_tokens = 0
        self.last_token_at: float | None = None
        self._decode = tokenizer.decode
        self._text = IncrementalText(tokenizer.decode, stop_strings)
        self._logprobs = AnswerLogprobs(tokenizer)
        self._num_taken = 0  # characters

    @property
    def finish(self) -> str | None:
        """Why the answer has ended, in the words of OpenAI's chats; None if it goes on."""
        if self.completion is None:
            return None
        if self.calls:
            return "tool_calls"
        return "stop" if self._text.stopped else str(self.completion.finish_reason)

    @property
    def calls(self) -> list[AnswerItem]:
        """The calls of tools."""
        return [each for each in self.items if each.kind == "function_call"]

    def text(self, kind: _Kind) -> str:
        """Return the text of all items of a kind."""
        return "".join(each.text for each in self.items if each.kind == kind)

    def add(self, token: int | TokenLogprobs) -> list[AnswerDelta]:
        """Add a token, and return what is certain now."""
        stopped, before = self._text.stopped, self._text.num_known
        piece = self._taken(self._text.add(token if isinstance(token, int) else token.token_id))
        if not isinstance(token, int) and not stopped:
            self._logprobs.add(token, before, self._text.num_known)
        return self._grow(piece)

    def finish_with(self, completion: Completion) -> list[AnswerDelta]:
        """Set the whole answer, and return the rest of it."""
        self.completion = completion
        last = self._taken(self._text.finish(whole_text(self._decode, completion.token_ids)))
        rest = self.split.rest()
        deltas = self._grow(SplitText(last.reasoning + rest.reasoning, last.answer + rest.answer))
        return deltas + [self._added("function_call", each.arguments, each.name) for each in self.split.calls]

    def tokens(self) -> tuple[AnswerToken, ...]:
        """Return the tokens of the text that was taken since the last call."""
        whole = self.completion is not None and not self._text.stopped
        return self._logprobs.take(None if whole else self._num_taken)

    def _taken(self, piece: str) -> SplitText:
        self._num_taken += len(piece)
        return self.split.add(piece)

    def _grow(self, piece: SplitText) -> list[AnswerDelta]:
        added: list[tuple[_Kind, str]] = [("reasoning", piece.reasoning), ("message", piece.answer)]
        return [self._added(kind, text) for kind, text in added if text]

    def _added(self, kind: _Kind, text: str, name: str = "") -> AnswerDelta:
        begins = bool(name) or not self.items or self.items[-1].kind != kind
        if begins:
            self.items.append(AnswerItem(kind, len(self.items), name))
        self.items[-1].text += text
        return AnswerDelta(self.items[-1], text, begins)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAnswer:
    """What a request is answered with.

    Attributes:
        key: Forms put a prefix before it for the id of the answer.
        model: The id of the model, with the schema.
        rows: The answers: `num_choices` of the first prompt, then those of the next.
        has_logprobs: Whether log-probabilities were asked for.
        has_usage: Whether the usage was asked for in a stream of chats or completions.
    """

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    model: str
    schema: str | None
    rows: tuple[AnswerRow, ...]
    num_choices: int
    has_logprobs: bool
    has_usage: bool

    @property
    def has_ended(self) -> bool:
        """Whether all rows have ended."""
        return all(row.completion is not None for row in self.rows)

    @property
    def usage(self) -> tuple[int, int, int]:
        """The tokens of all prompts, those of them that were not computed for the answers, and generated tokens.

        A prompt with several answers counts once.
        """
        usages = [row.completion.usage for row in self.rows if row.completion is not None]
        prompt = cached = 0
        for usage in usages[:: self.num_choices]:
            encoded = sum(each.num_tokens for each in usage.modules if each.source is KVSource.MISS)
            reused = usage.num_reused_tokens + usage.num_history_tokens
            prompt += reused + usage.num_new_tokens
            cached += reused - encoded
        return prompt, cached, sum(each.num_generated_tokens for each in usages)

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
    """Base class of the forms of an answer over HTTP: one object, or the events of a stream."""

    def __init__(self, answer: ServedAnswer) -> None:
        self.answer = answer

    @abstractmethod
    def whole(self) -> Mapping[str, Any]:
        """Return the answer, all of whose rows have ended."""

    @abstractmethod
    def begin(self) -> Iterable[str]:
        """Return the first events."""

    @abstractmethod
    def add(self, index: int, deltas: Sequence[AnswerDelta]) -> Iterator[str]:
        """Yield the events of what was added to a row."""

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
