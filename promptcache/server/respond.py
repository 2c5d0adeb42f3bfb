"""From a prompt to an answer: submit the rows, and send what they generate, at once or as a stream."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from promptcache.answers import TokenLogprobs
from promptcache.decode import Completion, Ticket
from promptcache.decode import Request as PlannedRequest
from promptcache.diagnostics import InvalidGeneration, PromptCacheError, QueueFull
from promptcache.layout import Plan
from promptcache.options import DEFAULT_NEW_TOKENS
from promptcache.planning import PromptSource
from promptcache.server.answer import AnswerDelta, AnswerForm, AnswerRow, ServedAnswer
from promptcache.server.bodies import GenerationBody
from promptcache.server.errors import ApiError, ClientGone, as_api_error
from promptcache.server.pools import client_left
from promptcache.server.state import ServerState
from promptcache.structured import check_format

KEEP_ALIVE_S = 15.0
"""Seconds after which a stream without tokens gets an event that says nothing."""

_KEEP_ALIVE = ": keep-alive\n\n"

MAX_UNREAD = 512
"""Number of tokens that the client of a stream may be behind before its request is cancelled."""

RowItem: TypeAlias = int | TokenLogprobs | Completion | BaseException
"""A generated token, the end of a row, or an error."""

_TRACES = logging.getLogger("promptcache.server.errors")


class Endpoint(StrEnum):
    """The endpoints that answer prompts."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    PROMPTS = "prompts"
    RESPONSES = "responses"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """Prompts and how they are to be answered.

    Attributes:
        prompts: One prompt, or several of completions, each of which has `n` answers.
        make_form: Returns the form in which the client gets the answer.
        schema: The name of their schema, or None.
        options: The options of the answers, without their limit and salt.
        reuse: Whether it uses KV of modules and history.
    """

    endpoint: Endpoint
    prompts: tuple[PromptSource, ...]
    make_form: Callable[[ServedAnswer], AnswerForm]
    schema: str | None
    body: GenerationBody
    options: Mapping[str, Any]
    reuse: bool = True

    @property
    def num_rows(self) -> int:
        """The number of answers."""
        return len(self.prompts) * self.body.num_choices

    def requests(self, state: ServerState, salt: str | None = None) -> Iterator[PlannedRequest]:
        """Yield the requests of the prompts. Each is planned once, so all of its answers are of one schema.

        Errors are those of `Service.submit`.
        """
        body, most = self.body, state.settings.max_new_tokens
        own = body.limit is not None or most >= DEFAULT_NEW_TOKENS
        limit = body.limit if own else most  # None means the default, or less if the context ends earlier
        for prompt in self.prompts:
            yield state.service.request(prompt, reuse=self.reuse, max_new_tokens=limit, salt=salt, **self.options)

    def check_format(self) -> None:
        """Refuse a format that is not supported; the error names the field. The event loop does not wait for this."""
        output, place = self.options["output"], self.body.format_name
        try:
            if output is not None:
                check_format(output)
        except InvalidGeneration as error:
            raise ApiError(400, "invalid_value", f"{place}: {error}", param=place) from None


class RowEvents:
    """What happens to the rows of one request, in order. Used in one event loop, filled by the worker thread."""

    def __init__(self, timeout_s: float, max_unread: float) -> None:
        """Create the events of a request, in the event loop that runs.

        Args:
            timeout_s: Seconds after which it ends.
            max_unread: Number of items that may wait to be read; a request with more of them ends.
        """
        self._loop = asyncio.get_running_loop()
        self._max_unread = max_unread
        self._items: deque[tuple[int, RowItem]] = deque()
        self._ready = asyncio.Event()
        self._tickets: list[Ticket] = []
        self._watcher: asyncio.Task[None] | None = None
        message = f"the request took longer than {timeout_s:g} s, the limit here"
        late = ApiError(408, "request_timeout", message, headers={"x-should-retry": "false"})
        self._deadline = self._loop.call_later(timeout_s, self._fail, late)
        self._closed = False

    def listener(self, row: int) -> Callable[[RowItem], None]:
        """Return the listener of a row, for `Service.submit`."""

        def listen(item: RowItem) -> None:
            with suppress(RuntimeError):  # the event loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._add, row, item)

        return listen

    def watch(self, tickets: list[Ticket], receive: Receive) -> None:
        """Cancel these tickets once the client has gone."""

        async def wait() -> None:
            await client_left(receive)
            self._watcher = None  # it must not cancel itself
            self._fail(ClientGone())

        self._tickets = tickets
        self._watcher = self._loop.create_task(wait())

    async def first(self, timeout_s: float) -> RowItem | None:
        """Return the first item, which stays in its place; None if there is none within `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        return self._items[0][1] if self._items else None

    async def next(self, timeout_s: float | None = None) -> tuple[int, RowItem]:
        """Return the next item with its row.

        Raises:
            TimeoutError: There is none within `timeout_s`.
        """
        if not self._items:
            async with asyncio.timeout(timeout_s):  # `wait_for` makes a task for each token
                await self._ready.wait()
        item = self._items.popleft()
        if not self._items:
            self._ready.clear()
        return item

    def close(self) -> None:
        """End the request: rows that still run leave the batch."""
        self._closed = True
        self._deadline.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        for ticket in self._tickets:
            ticket.cancel()
        self._tickets.clear()  # their listeners hold this object, and each of them a compiled format

    def _add(self, row: int, item: RowItem) -> None:
        if self._closed:
            return
        self._items.append((row, item))
        self._ready.set()
        if len(self._items) > self._max_unread:
            self._fail(ApiError(408, "client_too_slow", f"the client is {self._max_unread} tokens behind"))

    def _fail(self, error: BaseException) -> None:
        """Put an error before all other items, and cancel the rows."""
        self._items.appendleft((0, error))
        self._ready.set()
        self.close()


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


async def respond(request: Request, question: ServerRequest) -> Response:
    """Answer a prompt.

    Raises:
        ApiError: The request is refused.
        PromptCacheError: The prompt or an option is not valid; nothing was queued.
    """
    state: ServerState = request.app.state.server
    state.check_ready()
    _check(question, state)
    responder = _Responder(request, question, state)
    try:
        await responder.submit(request)
        if not question.body.stream:
            return await responder.whole()
        first = await responder.events.first(KEEP_ALIVE_S)  # an error before the first token has a status of its own
        if isinstance(first, BaseException):
            raise first
    except ClientGone:
        responder.end("cancelled")
        raise
    except Exception as error:  # noqa: BLE001 - an unexpected error that is raised here closes the connection unannounced
        raise responder.fail(error) from None
    except BaseException as error:
        responder.fail(error)
        raise
    return EventStream(responder.stream(), responder.events.close)


def planned(question: ServerRequest, state: ServerState) -> Plan:
    """Return the plan of a request. The model does not run. Errors are those of `respond`."""
    _check(question, state)
    question.check_format()
    (request,) = question.requests(state)
    return request.plan


def _check(question: ServerRequest, state: ServerState) -> None:
    """Refuse what this server can never answer."""
    body, limits = question.body, state.settings
    for param, value, most in (
        (body.limit_name, body.limit, state.settings.max_new_tokens),
        ("n", body.n, limits.max_waiting),  # each answer is a request that waits first
    ):
        if value is not None and value > most:
            message = f"{param}={value} is more than {most}, the limit of this server"
            raise ApiError(400, "invalid_value", message, param=param)
    if question.num_rows > limits.max_waiting:
        message = f"the prompts have {question.num_rows} answers, and at most {limits.max_waiting} may wait here"
        raise ApiError(400, "invalid_value", message, param="prompt")


class _Responder:
    """Answers one question, which may have several rows."""

    def __init__(self, request: Request, question: ServerRequest, state: ServerState) -> None:
        max_unread = MAX_UNREAD if question.body.stream else math.inf  # a whole answer waits for no client
        self.events = RowEvents(state.settings.request_timeout_s, max_unread)
        self._question = question
        self._state = state
        self._record: dict[str, Any] = request.state.record
        self._salt = question.body.salt(request.state.caller.salt)
        self._started = time.perf_counter()
        self._accepted = False
        body, has_logprobs = question.body, question.options.get("logprobs") is not None
        self._reads_tokens = body.stream or has_logprobs
        self._answer = ServedAnswer(
            model=f"{state.settings.served_model_name}{f'@{question.schema}' if question.schema else ''}",
            schema=question.schema,
            rows=tuple(AnswerRow(state.engine.tokenizer, body.stop_strings) for _ in range(question.num_rows)),
            num_choices=body.num_choices,
            has_logprobs=has_logprobs,
            has_usage=body.stream_options is not None and body.stream_options.include_usage,
        )
        self._form = question.make_form(self._answer)
        self._record |= {"endpoint": str(question.endpoint), "model": self._answer.model}

    async def submit(self, request: Request) -> None:
        """Put all rows into the queue, or none."""
        tickets: list[Ticket] = []

        def submit_all() -> None:
            question, service = self._question, self._state.service
            try:
                requests = [*question.requests(self._state, self._salt)]
            except InvalidGeneration:
                question.check_format()  # an error that names the field
                raise
            if question.endpoint is not Endpoint.COMPLETIONS:
                for row in self._answer.rows:
                    row.split = requests[0].reader.split()
            rows = [row for each in requests for row in each.copies(question.body.num_choices)]
            try:
                for index, each in enumerate(rows):  # a refused row cancels those before it
                    tickets.append(service.submit_request(each, self.events.listener(index)))
            except QueueFull:
                most = self._state.settings.max_waiting_tokens
                total = sum(row.plan.num_new_tokens + row.max_new_tokens for row in rows)
                if len(rows) > 1 and total > most:  # an idle server could not take them either: all wait at first
                    words = f"{len(rows)} answers of {total} tokens, with their prompts,"
                    message = f"{words} are more than {most} that may wait"
                    param = "n" if len(question.prompts) == 1 else "prompt"
                    raise ApiError(400, "invalid_value", message, param=param) from None
                raise

        try:
            await self._state.pools.plan(request, submit_all)
            self._accepted = True
        finally:
            self.events.watch(tickets, request.receive)

    async def whole(self) -> Response:
        """Return the answer as one JSON object."""
        while not self._answer.has_ended:
            index, item = await self.events.next()
            self._take(self._answer.rows[index], item)
        self._count()
        return JSONResponse(self._form.whole())

    async def stream(self) -> AsyncIterator[str]:
        """Yield the answer as server-sent events. Errors become the last event."""
        rows, form = self._answer.rows, self._form
        try:
            for event in form.begin():
                yield event
            while not self._answer.has_ended:
                try:
                    index, item = await self.events.next(KEEP_ALIVE_S)
                except TimeoutError:
                    yield _KEEP_ALIVE
                    continue
                for event in form.add(index, self._take(rows[index], item)):
                    yield event
                if rows[index].completion is not None:
                    for event in form.end_row(index):
                        yield event
            self._count()
            for event in form.end():
                yield event
        except ClientGone:
            self.end("cancelled")
        except Exception as error:  # noqa: BLE001 - the status is sent already, so the client gets the error as an event
            yield form.fail(self.fail(error))

    def _take(self, row: AnswerRow, item: RowItem) -> list[AnswerDelta]:
        """Take the next item of a row, and return what it adds. An error is raised."""
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Completion):
            return row.finish_with(item)
        now = time.perf_counter()
        self._state.metrics.token(now - (row.last_token_at or self._started), first=row.last_token_at is None)
        row.last_token_at = now
        row.num_tokens += 1
        return row.add(item) if self._reads_tokens else []

    def _count(self) -> None:
        """Count a request whose rows have all ended."""
        seconds = time.perf_counter() - self._started
        for row in self._answer.rows:
            assert row.completion is not None
            self._state.metrics.answered(
                row.completion,
                schema=self._question.schema,
                finish=row.finish or "",
                endpoint=self._question.endpoint,
                seconds=seconds,
            )
        (prompt, cached, generated), first = self._answer.usage, self._answer.rows[0]
        assert first.completion is not None
        self._record |= {
            "finish": first.finish,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "completion_tokens": generated,
            "ttft_s": round(first.completion.timing.ttft_s, 4),
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
            num_tokens = sum(
                row.num_tokens if row.completion is None else row.completion.usage.num_generated_tokens
                for row in self._answer.rows  # tokens of a whole answer may come with it
            )
            self._state.metrics.ended(finish, self._question.endpoint, len(self._answer.rows), num_tokens)
        self.events.close()
