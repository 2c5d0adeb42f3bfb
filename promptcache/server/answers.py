"""From a prompt to an answer in OpenAI's form: submit the rows, and send what they generate, at once or as a stream."""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from promptcache.diagnostics import PromptCacheError, QueueFull
from promptcache.layout import Plan
from promptcache.runtime import (
    DEFAULT_NEW_TOKENS,
    AnswerReader,
    AnswerSplit,
    Completion,
    IncrementalText,
    KVSource,
    PromptSource,
    RequestSettings,
    SplitText,
    TemplateOptions,
    TokenLogprobs,
    answer_reader,
    check_room,
    prefilled,
    read_options,
    whole_text,
)
from promptcache.server.errors import ApiError, ClientGone, as_api_error
from promptcache.server.events import MAX_UNREAD, RowEvents, RowItem
from promptcache.server.logprobs import AnswerLogprobs, AnswerToken, chat_logprobs, plain_logprobs
from promptcache.server.models import GenerationBody
from promptcache.server.state import ServedTicket, ServerState

KEEP_ALIVE_S = 15.0
"""Seconds after which a stream without tokens gets a comment."""

_LINE_ENDS = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}
"""Escapes for characters at which some clients cut lines, as Python's `splitlines` does. JSON escapes the others."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_TRACES = logging.getLogger("promptcache.server.errors")


class Endpoint(StrEnum):
    """The endpoints that answer prompts."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    PROMPTS = "prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """Prompts and how they are to be answered.

    Attributes:
        prompts: One prompt, or several of completions, each of which has `n` answers.
        schema: The name of their schema, or None.
        positions: Where cached text stands, as for `Engine.generate`.
        logprobs: Number of the most probable tokens to report for each token; None reports no log-probabilities.
        reuse: Whether it uses KV of modules and history.
        deterministic: Whether its answer does not depend on automatic promotions.
        template_kwargs: Variables of the chat template.
        form: Options of `Service.submit` that give the answer a form: `output`, and `tools` with their settings.
    """

    endpoint: Endpoint
    prompts: tuple[PromptSource, ...]
    schema: str | None
    body: GenerationBody
    repair: str | None = None
    positions: str | None = None
    logprobs: int | None = None
    reuse: bool = True
    deterministic: bool = False
    template_kwargs: TemplateOptions = None
    form: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """The number of answers."""
        return len(self.prompts) * self.body.num_choices

    def plans(self, state: ServerState) -> Iterator[Plan]:
        """Yield the plans of the prompts; errors are those of `Engine.plan`."""
        settings = self.settings
        for prompt in self.prompts:
            template = settings.template_options(prompt)
            made = state.engine.plan(prompt, repair=self.repair, positions=self.positions, template_kwargs=template)
            yield made if self.reuse else prefilled(made)

    @property
    def settings(self) -> RequestSettings:
        """The settings that decide about the text of the prompts and of the answers."""
        return RequestSettings(template_kwargs=self.template_kwargs, **self.form)

    def limit(self, plan: Plan, state: ServerState) -> int:
        """Return the maximum number of tokens of an answer; errors are those of `check_room`."""
        options = read_options(self.body.generation, _max_new_tokens(self.body, state))
        return check_room(plan, options.get("max_new_tokens"), state.engine.model.context_length)


@dataclass(slots=True, kw_only=True)
class _AnswerRow:
    """One of the `n` answers, as it grows.

    Attributes:
        num_taken: Characters of the answer that were taken from `text`.
        num_tokens: Tokens that came one by one, before the completion.
        logprobs: The tokens with log-probabilities, if these were asked for.
    """

    text: IncrementalText
    decode: Callable[[Sequence[int]], str]
    split: AnswerSplit
    logprobs: AnswerLogprobs
    call_ids: list[str] = field(default_factory=list)
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
        if self.completion is None:
            return None
        if self.split.calls:
            return "tool_calls"
        return "stop" if self.text.stopped else str(self.completion.finish_reason)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of tools, once the answer has ended."""
        self.call_ids += [f"call_{uuid.uuid4().hex}" for _ in self.split.calls[len(self.call_ids) :]]
        return [
            {"id": each, "type": "function", "function": call._asdict()}
            for each, call in zip(self.call_ids, self.split.calls, strict=True)
        ]

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
        rest = self.text.finish(whole_text(self.decode, completion.token_ids))
        return _joined([self._taken(rest), self.split.rest()])

    def tokens(self) -> tuple[AnswerToken, ...]:
        """Return the tokens of the text that was taken since the last call."""
        whole = self.completion is not None and not self.text.stopped
        return self.logprobs.take(None if whole else self.num_taken)

    def _taken(self, piece: str) -> SplitText:
        self.num_taken += len(piece)
        return self.split.add(piece)


def _joined(parts: Iterable[SplitText]) -> SplitText:
    reasoning, answer = map("".join, zip(*parts, strict=True))
    return SplitText(reasoning, answer)


async def respond(request: Request, question: ServerRequest) -> Response:
    """Answer a prompt.

    Raises:
        ApiError: The request is refused.
        PromptCacheError: The prompt or an option is not valid; nothing was queued.
    """
    state: ServerState = request.app.state.server
    state.check_ready()
    _check(question, state)
    answer = _Answer(request, question, state)
    try:
        await answer.submit(request)
        if not question.body.stream:
            return await answer.whole()
        first = await answer.events.first(KEEP_ALIVE_S)  # an error before the first token has a status of its own
        if isinstance(first, BaseException):
            raise first
    except ClientGone:
        answer.end("cancelled")
        raise
    except Exception as error:  # noqa: BLE001 - an unexpected error that is raised here closes the connection unannounced
        raise answer.fail(error) from None
    except BaseException as error:
        answer.fail(error)
        raise
    return EventStream(answer.stream(), answer.events.close)


def planned(question: ServerRequest, state: ServerState) -> Plan:
    """Return the plan of a request. The model does not run.

    Raises:
        ApiError: The request is refused.
        PromptCacheError: As `respond`, for a prompt or an option that is not valid.
    """
    _check(question, state)
    (plan,) = question.plans(state)
    question.limit(plan, state)
    return plan


def _max_new_tokens(body: GenerationBody, state: ServerState) -> int | None:
    """Return the limit of an answer. None means the default, or less if the context ends earlier."""
    most = state.settings.max_new_tokens
    return body.limit if body.limit is not None or most >= DEFAULT_NEW_TOKENS else most


def _check(question: ServerRequest, state: ServerState) -> None:
    """Refuse what this server can never answer."""
    body, limits = question.body, state.settings.limits
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    for param, value, most in (
        (name, body.limit, state.settings.max_new_tokens),
        ("n", body.n, limits.max_waiting),  # each answer is a request that waits first
    ):
        if value is not None and value > most:
            message = f"{param}={value} is more than {most}, the limit of this server"
            raise ApiError(400, "invalid_value", message, param=param)
    if question.num_rows > limits.max_waiting:
        message = f"the prompts have {question.num_rows} answers, and at most {limits.max_waiting} may wait here"
        raise ApiError(400, "invalid_value", message, param="prompt")


class _Answer:
    """The answer to one question, which may have several rows: `n` of the first prompt, then those of the next."""

    def __init__(self, request: Request, question: ServerRequest, state: ServerState) -> None:
        max_unread = MAX_UNREAD if question.body.stream else math.inf  # a whole answer waits for no client
        self.events = RowEvents(state.calls, state.settings.request_timeout_s, max_unread)
        self._question = question
        self._state = state
        self._record: dict[str, Any] = request.state.record
        self._salt = question.body.salt(request.state.caller.salt)
        self._started = time.perf_counter()
        self._accepted = False
        tokenizer, stop_strings = state.engine.tokenizer, question.body.stop_strings
        text = tokenizer.decode
        self._rows = [
            _AnswerRow(
                text=IncrementalText(text, stop_strings),
                decode=text,
                split=AnswerReader().split(),
                logprobs=AnswerLogprobs(tokenizer),
            )
            for _ in range(question.num_rows)
        ]
        self._reads_tokens = question.body.stream or question.logprobs is not None
        self._form = _FORMS[question.endpoint]
        schema = f"@{question.schema}" if question.schema else ""
        self._head = {
            "id": f"{self._form.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": f"{state.settings.model}{schema}",
        }
        self._record |= {"endpoint": str(question.endpoint), "model": self._head["model"]}

    async def submit(self, request: Request) -> None:
        """Put all rows into the queue, or none."""
        tickets: list[ServedTicket] = []

        def submit_all() -> None:
            self._read_answers()
            try:
                for row in range(len(self._rows)):
                    tickets.append(self._submit(row))  # noqa: PERF401 - a refused row cancels those before it
            except QueueFull:
                self._check_waiting_tokens()
                raise

        try:
            await self._state.pools.plan(request, submit_all)
            self._accepted = True
        finally:
            self.events.watch(tickets, request.receive)

    def _read_answers(self) -> None:
        """Let the rows take reasoning and calls of tools apart, if there may be any."""
        question, tokenizer = self._question, self._state.engine.tokenizer
        tools = question.settings.read_tools()
        if question.endpoint is Endpoint.COMPLETIONS or (tokenizer.reasoning_tags is None and not tools):
            return
        (plan,) = question.plans(self._state)
        reader = answer_reader(tokenizer, plan, [each.name for each in tools])
        for row in self._rows:
            row.split = reader.split()

    def _check_waiting_tokens(self) -> None:
        """Refuse for good what an idle server could not take either: all rows wait before the first one runs."""
        question, state = self._question, self._state
        most, num = state.settings.limits.max_waiting_tokens, question.num_rows
        if num == 1:
            return
        tokens = [plan.num_new_tokens + question.limit(plan, state) for plan in question.plans(state)]
        if (total := sum(tokens) * question.body.num_choices) > most:
            message = f"{num} answers of {total} tokens, with their prompts, are more than {most} that may wait"
            raise ApiError(400, "invalid_value", message, param="n" if len(tokens) == 1 else "prompt")

    def _submit(self, row: int) -> ServedTicket:
        body = self._question.body
        generation = body.generation
        prompt, choice = divmod(row, body.num_choices)
        if body.seed is not None:
            generation["seed"] = body.seed + choice
        return self._state.service.submit(
            self._question.prompts[prompt],
            self.events.listener(row),
            max_new_tokens=_max_new_tokens(body, self._state),
            repair=self._question.repair,
            positions=self._question.positions,
            salt=self._salt,
            logprobs=self._question.logprobs,
            reuse=self._question.reuse,
            deterministic=self._question.deterministic,
            template_kwargs=self._question.template_kwargs,
            **self._question.form,
            **generation,
        )

    async def whole(self) -> Response:
        """Return the answer as one JSON object."""
        while any(row.completion is None for row in self._rows):
            index, item = await self.events.next()
            self._take(self._rows[index], item)
        self._count()
        choices = [self._choice(index, row) for index, row in enumerate(self._rows)]
        cache = self._cache(self._first)
        return JSONResponse(
            {**self._head, "object": self._form.whole, "choices": choices, "usage": self._usage, "prompt_cache": cache}
        )

    async def stream(self) -> AsyncIterator[str]:
        """Yield the answer as server-sent events. Errors become the last event."""
        wants_usage = (options := self._question.body.stream_options) is not None and options.include_usage
        usage = {"usage": None} if wants_usage else {}
        head = _json({**self._head, "object": self._form.chunk}).removesuffix("}")  # the same in all chunks

        def chunk(**fields: Any) -> str:
            return _event(f"{head},{_json({**usage, **fields}).removeprefix('{')}")

        try:
            for index in range(len(self._rows)):
                if (delta := self._form.opening) is not None:
                    yield chunk(choices=[self._delta(index, delta)])
            while any(row.completion is None for row in self._rows):
                try:
                    index, item = await self.events.next(KEEP_ALIVE_S)
                except TimeoutError:
                    yield ": keep-alive\n\n"
                    continue
                row = self._rows[index]
                piece = self._take(row, item)
                if any(piece):
                    yield chunk(choices=[self._delta(index, self._form.delta(piece), row.tokens())])
                if row.completion is not None:
                    if calls := row.calls:
                        numbered = [{"index": at, **each} for at, each in enumerate(calls)]
                        yield chunk(choices=[self._delta(index, {"delta": {"tool_calls": numbered}})])
                    ended = self._delta(index, self._form.delta(SplitText("", "")), row.tokens(), row.finish)
                    yield chunk(choices=[ended], prompt_cache=self._cache(row.completion))
            self._count()
            if wants_usage:
                yield chunk(choices=[], usage=self._usage)
            yield "data: [DONE]\n\n"
        except ClientGone:
            self.end("cancelled")
        except Exception as error:  # noqa: BLE001 - the status is sent already, so the client gets the error as an event
            yield _event(_json(self.fail(error).body))

    def _take(self, row: _AnswerRow, item: RowItem) -> SplitText:
        """Take the next item of a row, and return the text that it adds.

        Raises:
            BaseException: The item, if it is an error.
        """
        if isinstance(item, BaseException):
            raise item
        if not isinstance(item, Completion):
            self._count_token(row)
            piece = row.add(item) if self._reads_tokens else SplitText("", "")
        elif row.last_token_at is None and item.logprobs:  # it was answered alone
            self._count_token(row)
            piece = _joined([*map(row.add, item.logprobs), row.finish_with(item)])
        else:
            piece = row.finish_with(item)
        if not self._question.body.stream:
            row.pieces.append(piece)
        return piece

    def _count_token(self, row: _AnswerRow) -> None:
        now = time.perf_counter()
        self._state.metrics.token(now - (row.last_token_at or self._started), first=row.last_token_at is None)
        row.last_token_at = now
        row.num_tokens += 1

    def _choice(self, index: int, row: _AnswerRow) -> dict[str, Any]:
        assert row.completion is not None
        content = self._form.content(_joined(row.pieces), row.calls)
        logprobs = None if self._question.logprobs is None else self._form.logprobs(row.tokens())
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": row.finish}

    def _delta(
        self, index: int, delta: Mapping[str, Any], tokens: Sequence[AnswerToken] = (), finish: str | None = None
    ) -> dict[str, Any]:
        logprobs = self._form.logprobs(tokens) if tokens else None
        return {"index": index, **delta, "logprobs": logprobs, "finish_reason": finish}

    @property
    def _first(self) -> Completion:
        completion = self._rows[0].completion
        assert completion is not None, "all rows have ended"
        return completion

    @property
    def _usage(self) -> dict[str, Any]:
        """The tokens of all answers. A prompt with several answers counts once."""
        usages = [row.completion.usage for row in self._rows if row.completion is not None]
        prompt = cached = 0
        for usage in usages[:: self._question.body.num_choices]:
            encoded = sum(each.num_tokens for each in usage.modules if each.source is KVSource.MISS)
            reused = usage.num_reused_tokens + usage.num_history_tokens
            prompt += reused + usage.num_new_tokens
            cached += reused - encoded
        generated = sum(each.num_generated_tokens for each in usages)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _cache(self, completion: Completion) -> dict[str, Any]:
        usage, timing = completion.usage, completion.timing
        return {
            "schema": self._question.schema,
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

    def _count(self) -> None:
        """Count a request whose rows have all ended."""
        seconds = time.perf_counter() - self._started
        for row in self._rows:
            assert row.completion is not None
            self._state.metrics.answered(
                row.completion,
                schema=self._question.schema,
                finish=row.finish or "",
                endpoint=self._question.endpoint,
                seconds=seconds,
            )
        usage = self._usage
        self._record |= {
            "finish": self._rows[0].finish,
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "ttft_s": round(self._first.timing.ttft_s, 4),
        }
        self.events.close()

    def fail(self, error: BaseException) -> ApiError:
        """Count a request that failed, end it, and return the error for its client."""
        made = as_api_error(error)
        if not self._accepted and made.status in (429, 503):
            self._state.metrics.rejected(made.code)
        if not isinstance(error, ApiError | PromptCacheError):
            _TRACES.error("request %s failed", self._record["id"], exc_info=error)
        self._record["error"] = made.code
        self.end("error")
        return made

    def end(self, finish: str) -> None:
        """End a request without an answer."""
        self._record["finish"] = finish
        if self._accepted:
            num_tokens = sum(row.num_generated_tokens for row in self._rows)
            self._state.metrics.ended(finish, self._question.endpoint, len(self._rows), num_tokens)
        self.events.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnswerForm:
    """The form of the answers of an endpoint.

    Attributes:
        prefix: Of the ids of answers.
        opening: The first delta of a stream; None if there is none.
        content: Returns the fields of a choice that hold its text and calls of tools; `delta` those of a chunk.
        logprobs: Returns the log-probabilities of a choice or chunk.
    """

    prefix: str
    whole: str
    chunk: str
    opening: Mapping[str, Any] | None
    content: Callable[[SplitText, Sequence[Mapping[str, Any]]], Mapping[str, Any]]
    delta: Callable[[SplitText], Mapping[str, Any]]
    logprobs: Callable[[Sequence[AnswerToken]], Mapping[str, Any]]


def _reasoning_content(text: SplitText) -> dict[str, str]:
    return {"reasoning_content": text.reasoning} if text.reasoning else {}


def _message(text: SplitText, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    content = None if calls and not text.answer else text.answer
    message = {"role": "assistant", "content": content, "refusal": None, **_reasoning_content(text)}
    return {**message, "tool_calls": calls} if calls else message


_CHAT = _AnswerForm(
    prefix="chatcmpl",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    opening={"delta": {"role": "assistant", "content": ""}},
    content=lambda text, calls: {"message": _message(text, calls)},
    delta=lambda text: {"delta": {**({"content": text.answer} if text.answer else {}), **_reasoning_content(text)}},
    logprobs=chat_logprobs,
)
_FORMS = {
    Endpoint.CHAT: _CHAT,
    Endpoint.PROMPTS: _CHAT,
    Endpoint.COMPLETIONS: _AnswerForm(
        prefix="cmpl",
        whole="text_completion",
        chunk="text_completion",
        opening=None,
        content=lambda text, _: {"text": text.answer},
        delta=lambda text: {"text": text.answer},
        logprobs=plain_logprobs,
    ),
}


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


def _json(data: Mapping[str, Any]) -> str:
    text = _ENCODER.encode(data)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def _event(text: str) -> str:
    return f"data: {text}\n\n"
