"""A replica: an engine with its service, which answers the requests of a front in groups of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from promptcache.diagnostics import ServiceClosed, UnknownSchema
from promptcache.engine import Engine
from promptcache.kv import Codec
from promptcache.language import Prompt, check_schema
from promptcache.locks import new_lock
from promptcache.runtime import Completion, PromptSource, ServiceLimits, Ticket, TokenLogprobs
from promptcache.scale.remote import RemoteRequest, ReplicaAnswer, ReplicaFacts, ReplicaLost, packed_digest, unpack
from promptcache.scale.resume import Attempt, TokenGroup

GROUP_S = 0.02
GROUP_TOKENS = 8
"""A group is sent after this time, or with this many tokens; the first token is sent at once."""

_MAX_VERSIONS = 2
"""Packed schemas of one name that a replica has: fronts may still send the old one for a while."""

_Told: TypeAlias = int | TokenLogprobs | Completion | BaseException


class ReplicaService:
    """An engine whose schemas are known by digest, so that a request never meets another version of its schema."""

    def __init__(self, engine: Engine, limits: ServiceLimits, keep: Codec = Codec.FULL) -> None:
        """Start the service of an engine.

        Args:
            keep: The codec with which KV of schemas is kept.
        """
        self._engine = engine
        self._keep = keep
        self._service = engine.service(limits)
        self._names: dict[str, str] = {}  # the names in the engine by digest, oldest first
        self._lock = new_lock()

    @property
    def facts(self) -> ReplicaFacts:
        """Facts about the model that fronts need."""
        engine = self._engine
        return ReplicaFacts(
            context_length=engine.model.context_length,
            positions=engine.positions,
            end_ids=engine.end_ids,
            tokenizer=engine.tokenizer,
        )

    @property
    def is_dead(self) -> bool:
        """Whether the thread that runs the model has ended."""
        return self._service.state == "dead"

    @property
    def num_running(self) -> int:
        """The number of requests that it computes."""
        return self._service.counts.num_running

    def warm(self, packed: Sequence[str]) -> None:
        """Add packed schemas, and encode them."""
        for each in packed:
            self._engine.warm(self._add(each))

    def close(self) -> None:
        """End the service."""
        self._service.close()

    async def answer(self, request: RemoteRequest, attempt: Attempt) -> AsyncGenerator[TokenGroup]:
        """Yield the groups of an answer. The last one has a `ReplicaAnswer`.

        Raises:
            UnknownSchema: The request needs its packed schema.
            ReplicaLost: The service takes no requests any more.
            As `Service.submit`, and what its listener gets.
        """
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[_Told] = asyncio.Queue()

        def listen(item: _Told) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(items.put_nowait, item)

        try:
            submitting = asyncio.create_task(asyncio.to_thread(self._submit, request, attempt, listen))
            try:
                ticket = await asyncio.shield(submitting)
            except asyncio.CancelledError:  # the thread goes on
                submitting.add_done_callback(_cancel_submitted)
                raise
            try:
                is_first, ended = True, False
                while not ended:
                    group = await _next_group(items, waits=not is_first)
                    if isinstance(group[-1], BaseException):
                        raise group[-1]
                    yield _token_group(group, is_first=is_first)
                    is_first, ended = False, isinstance(group[-1], Completion)
            finally:
                ticket.cancel()
        except ServiceClosed as error:
            raise ReplicaLost(str(error)) from None

    def _submit(self, request: RemoteRequest, attempt: Attempt, listen: Callable[[_Told], None]) -> Ticket:
        options = {**request.options}
        if attempt.min_new_tokens:
            options["min_new_tokens"] = attempt.min_new_tokens
        return self._service.submit(
            self._prompt(request),
            listen,
            max_new_tokens=attempt.max_new_tokens,
            seed=attempt.seed,
            given=attempt.given,
            **options,
        )

    def _prompt(self, request: RemoteRequest) -> PromptSource:
        """Return the prompt of a request under the name that its schema has in the engine."""
        if request.schema is None:
            return request.prompt
        with self._lock:
            name = self._names.get(request.schema)
        if name is None:
            if request.packed is None:
                raise UnknownSchema(f"this replica has no schema {request.schema}")
            name = self._add(request.packed)
        assert isinstance(request.prompt, Prompt), "only prompts have schemas"
        return replace(request.prompt, schema=name)

    def _add(self, packed: str) -> str:
        """Add a packed schema, and return its name in the engine, which no other version of it has."""
        schema, digest = check_schema(unpack(packed)), packed_digest(packed)
        name = f"{schema.name}@{digest[:16]}"
        with self._lock:
            if digest in self._names:
                return name
            self._engine.add_schema(replace(schema, name=name), keep=self._keep)
            versions = [each for each, other in self._names.items() if other.rpartition("@")[0] == schema.name]
            for old in versions[: len(versions) + 1 - _MAX_VERSIONS]:
                self._engine.remove_schema(self._names.pop(old))
            self._names[digest] = name
        return name


def _cancel_submitted(submitting: asyncio.Task[Ticket]) -> None:
    if submitting.exception() is None:
        submitting.result().cancel()


async def _next_group(items: asyncio.Queue[_Told], *, waits: bool) -> list[_Told]:
    """Return the next items, at least one. An end is the last of them.

    Args:
        waits: Whether to wait for more tokens, as long as a group may.
    """
    group = [await items.get()]
    with suppress(TimeoutError):
        async with asyncio.timeout(GROUP_S):
            while waits and len(group) < GROUP_TOKENS and not isinstance(group[-1], Completion | BaseException):
                group.append(await items.get())
    while not items.empty():
        group.append(items.get_nowait())
    return group


def _token_group(group: Sequence[_Told], *, is_first: bool) -> TokenGroup:
    last = group[-1] if isinstance(group[-1], Completion) else None
    tokens: Sequence[int | TokenLogprobs] = [each for each in group if isinstance(each, int | TokenLogprobs)]
    if last is not None and is_first and not tokens:  # it was answered alone, and its tokens were not sent
        tokens = last.logprobs or last.token_ids
    return TokenGroup(
        token_ids=tuple(each.token_id if isinstance(each, TokenLogprobs) else each for each in tokens),
        logprobs=tuple(each for each in tokens if isinstance(each, TokenLogprobs)),
        completion=None if last is None else ReplicaAnswer(last.finish_reason, last.usage, last.timing),
    )
