"""An engine whose model runs elsewhere: it checks and plans prompts here, and replicas answer them.

A server runs on it as on an `Engine`. A prompt that is not valid reaches no replica.
"""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from promptcache.diagnostics import PromptCacheError, ServiceClosed, UnknownSchema, UnsupportedModel
from promptcache.kv import Codec
from promptcache.language import (
    DEFAULT_REPAIR,
    CheckedSchema,
    Placement,
    Schema,
    check_schema,
)
from promptcache.layout import Layout, Plan
from promptcache.runtime import (
    AnswerReader,
    Catalog,
    Completion,
    EngineStats,
    FinishReason,
    Listener,
    Planner,
    Progress,
    PromptSource,
    RequestSettings,
    SchemaState,
    ServiceCounts,
    ServiceLimits,
    ServiceObserver,
    ServiceState,
    TemplateOptions,
    Timing,
    Usage,
    WarmReport,
    answer_reader,
    check_room,
    check_tools,
    end_ids,
    prefilled,
    read_options,
    schema_state,
    whole_text,
)
from promptcache.scale.resume import Attempt, TokenGroup, resumed
from promptcache.structured import read_output
from promptcache.tokenizer import Tokenizer


class ReplicaLost(Exception):
    """The replica of a request has ended, or takes no requests any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """Facts about the model of the replicas that a front needs.

    Attributes:
        context_length: The number of positions.
        end_ids: The tokens that end an answer.
        tokenizer: The tokenizer.
        positions: Where requests have cached text, if a schema does not say.
    """

    context_length: int
    end_ids: tuple[int, ...]
    tokenizer: Tokenizer
    positions: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRequest:
    """A request as it is sent to a replica.

    Attributes:
        affinity: Requests with the same text should meet the same replica.
        prompt: The prompt, as for `Engine.generate`.
        schema: Digest of its packed schema; None if the prompt has no schema.
        packed: The packed schema, for a replica that does not have it.
        options: Options of `Service.submit` that are the same in each attempt.
    """

    affinity: str
    prompt: PromptSource
    schema: str | None
    packed: str | None = None
    options: Mapping[str, Any]


class ReplicaAnswer(NamedTuple):
    """Report of a replica at the end of an attempt; the fields are those of `Completion`."""

    finish_reason: FinishReason
    usage: Usage
    timing: Timing


Send: TypeAlias = Callable[[RemoteRequest, Attempt], AsyncGenerator[TokenGroup]]
"""Sends an attempt to a replica, and yields the groups of its answer. The last one has a `ReplicaAnswer`.

Raises:
    ReplicaLost: The replica has ended.
    UnknownSchema: The replica needs the packed schema.
"""


def pack(schema: Schema) -> str:
    """Return a schema as text for `unpack`, with the texts of its files."""
    return base64.b64encode(pickle.dumps(schema)).decode()


def unpack(packed: str) -> Schema:
    """Return the schema that `pack` got. The text must come from this application: it is a pickle."""
    schema: Schema = pickle.loads(base64.b64decode(packed))
    return schema


def packed_digest(packed: str) -> str:
    """Return the digest by which replicas know a packed schema."""
    return sha256(packed.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackedState(SchemaState):
    """A schema with its layout, packed as replicas get it, and the digest of that."""

    packed: str
    digest: str


class RemoteEngine:
    """Like `Engine`, for a server without the model.

    Attributes:
        model: Facts about the model.
        tokenizer: The tokenizer of the replicas.
        positions: As in `ReplicaFacts`.
        store: None; replicas have stores.
    """

    def __init__(self, facts: ReplicaFacts, send: Send, keep: Codec = Codec.FULL) -> None:
        """Create an engine without schemas.

        Args:
            keep: The codec with which replicas keep the KV of schemas.
        """
        self.model = facts
        self.tokenizer = facts.tokenizer
        self.positions = facts.positions
        self.store = None
        self._send = send
        self._keep = keep
        self._catalog = Catalog(None)
        self._planner = Planner(
            self._catalog, facts.tokenizer, facts.context_length, DEFAULT_REPAIR, place=partial(_placement, facts)
        )

    @property
    def schemas(self) -> Mapping[str, CheckedSchema]:
        """The schemas by name."""
        return {state.schema.name: state.schema for state in self._catalog.states}

    def stats(self) -> EngineStats:
        """Return no figures: replicas promote and compare nothing by themselves."""
        return EngineStats()

    def set_schemas(self, packed: Sequence[str]) -> None:
        """Serve these packed schemas and no others. Running requests keep those with which they were planned.

        Raises:
            SchemaError: A schema is not valid, or needs more positions than the model has. Nothing is changed.
        """
        states = list(map(self._state, packed))
        for state in states:
            self._catalog.add(state)
        for name in self.schemas.keys() - {state.schema.name for state in states}:
            self._catalog.remove(name)

    def _state(self, packed: str) -> SchemaState:
        schema = check_schema(unpack(packed))
        made = schema_state(schema, self.tokenizer, self.model.context_length, self._keep, self.positions)
        return _PackedState(
            schema=schema,
            layout=made.layout,
            states=made.states,
            codec=made.codec,
            members=made.members,
            packed=packed,
            digest=packed_digest(packed),
        )

    def plan(
        self,
        prompt: PromptSource,
        *,
        repair: str | None = None,
        positions: str | None = None,
        template_kwargs: TemplateOptions = None,
    ) -> Plan:
        """Return the plan of a prompt; errors are those of `Engine.plan`."""
        return self._planner.plan(prompt, repair, template_kwargs, positions)

    def layout(self, schema: str) -> Layout:
        """Return the positions of a schema."""
        return self._catalog.find(schema).layout

    def add_schema(self, source: Schema, *, keep: Codec) -> CheckedSchema:
        """Refuse a schema: no other front would have it."""
        raise PromptCacheError("schemas are deployed with this application: deploy it again with other schemas")

    def remove_schema(self, name: str) -> None:
        """Refuse it, like `add_schema`."""
        raise PromptCacheError("schemas are deployed with this application: deploy it again without this schema")

    def add_member(self, schema: str, collection: str, name: str, text: str) -> None:
        """Refuse a member: no other front would have it."""
        raise PromptCacheError("members are deployed with this application: deploy it again with this member")

    def remove_member(self, schema: str, collection: str, name: str) -> None:
        """Refuse it, like `add_member`."""
        raise PromptCacheError("members are deployed with this application: deploy it again without this member")

    def members(self, schema: str, collection: str) -> Mapping[str, str]:
        """Return the texts of the members of a collection, by name."""
        return self._catalog.members(schema, collection)

    def warm(
        self,
        schema: str | None = None,
        *,
        members: bool = False,
        pairs: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[WarmReport]:
        """Do nothing for all schemas: replicas encode them before they take requests. Refuse a single one."""
        if schema is not None:
            raise PromptCacheError("the schemas of this application are warm: each replica encodes them when it starts")
        return ()

    def service(self, limits: ServiceLimits, *, observer: ServiceObserver) -> RemoteService:
        """Return a service of this event loop. Limits and figures are those of the replicas."""
        return RemoteService(self._planner, self.model, self._send)


class RemoteService:
    """Sends requests to replicas, and again if a replica ends. Its tasks run in the event loop that creates it."""

    def __init__(self, planner: Planner, facts: ReplicaFacts, send: Send) -> None:
        self.state = ServiceState.READY
        self._planner = planner
        self._facts = facts
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._running: dict[Future[None], Listener] = {}

    @property
    def counts(self) -> ServiceCounts:
        """Numbers of requests. Those that wait in replicas count as running."""
        return ServiceCounts(num_running=len(self._running), num_waiting=0, num_waiting_tokens=0, tail_bytes=0)

    def submit(
        self,
        prompt: PromptSource,
        listener: Listener,
        *,
        reuse: bool = True,
        **settings: Any,
    ) -> Future[None]:
        """Like `Service.submit`. Call it from any thread but the event loop's.

        Replicas promote nothing by themselves, so every answer is deterministic.

        Returns:
            A future. `cancel` stops the request; the listener is not called again.

        Raises:
            ServiceClosed: The service has ended.
            As `Engine.generate`, for prompts and options that are not valid. Nothing was sent.
        """
        if self.state is not ServiceState.READY:
            raise ServiceClosed("the server is about to end", "draining")
        asked = RequestSettings.of(settings)
        tools = asked.read_tools()
        template = asked.template_options(prompt, tools)
        state, plan = self._planner.planned(prompt, asked.repair, template, asked.positions)
        check_tools(tools, prompt, plan, self._facts.tokenizer)
        reader = answer_reader(self._facts.tokenizer, plan, tools)
        if not reuse:
            plan = prefilled(plan)
        options = read_options(asked.generation, asked.max_new_tokens)
        limit = check_room(plan, options.pop("max_new_tokens", None), self._facts.context_length)
        packed, digest = (state.packed, state.digest) if isinstance(state, _PackedState) else (None, None)
        attempt = Attempt(
            max_new_tokens=limit,
            min_new_tokens=options.pop("min_new_tokens", 0),
            seed=secrets.randbits(62) if asked.seed is None else asked.seed,
        )
        request = RemoteRequest(
            affinity=_affinity(prompt) if packed is None else state.schema.name,
            prompt=prompt,
            schema=digest,
            options={
                "repair": asked.repair,
                "positions": asked.positions,
                "salt": asked.salt,
                "logprobs": asked.logprobs,
                "reuse": reuse,
                "template_kwargs": asked.template_kwargs,
                "output": None if asked.output is None else read_output(asked.output),
                "presence_penalty": asked.presence_penalty,
                "frequency_penalty": asked.frequency_penalty,
                "logit_bias": asked.logit_bias,
                "tools": asked.tools,
                "tool_choice": asked.tool_choice,
                "parallel_tool_calls": asked.parallel_tool_calls,
                **options,
            },
        )
        answering = self._answer(_Asked(request, packed, plan, reader, listener), attempt)
        future = asyncio.run_coroutine_threadsafe(answering, self._loop)
        self._running[future] = listener
        future.add_done_callback(self._running.pop)
        return future

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the others. Return whether all of them have ended."""
        self.state = ServiceState.DRAINING
        return not wait(tuple(self._running), timeout_s).not_done

    def close(self) -> None:
        """End the service. Requests that have not ended get `ServiceClosed`."""
        self.state = ServiceState.DRAINING
        for future, listener in tuple(self._running.items()):
            if future.cancel():
                listener(ServiceClosed("the server has ended", "draining"))

    async def _answer(self, asked: _Asked, attempt: Attempt) -> None:
        """Tell a listener the tokens of an answer, and its completion or an error."""
        token_ids: list[int] = []
        started = time.perf_counter()
        first_at, answer = 0.0, None

        def send(attempt: Attempt) -> AsyncGenerator[TokenGroup]:
            return self._send_with_schema(asked, attempt)

        def is_complete(given: Sequence[int]) -> bool:
            return self._is_complete(given, asked.request.options)

        try:
            async with aclosing(resumed(send, attempt, is_complete, ReplicaLost)) as groups:
                async for group in groups:
                    first_at = first_at or time.perf_counter()
                    token_ids += group.token_ids
                    answer = group.completion
                    for item in group.logprobs or group.token_ids:
                        asked.listener(item)
            timing = Timing(
                plan_s=0.0,
                fetch_s=0.0,
                link_s=0.0,
                prefill_s=first_at - started,
                decode_s=time.perf_counter() - first_at,
            )
            asked.listener(self._completion(asked, tuple(token_ids), answer, timing))
        except ReplicaLost as error:
            asked.listener(ServiceClosed(f"the replicas that began this answer have ended: {error}", "replica_lost"))
        except Exception as error:  # noqa: BLE001 - told to the request's listener
            asked.listener(error)

    async def _send_with_schema(self, asked: _Asked, attempt: Attempt) -> AsyncGenerator[TokenGroup]:
        """Send an attempt, with the schema if the replica does not have it."""
        try:
            async with aclosing(self._send(asked.request, attempt)) as groups:
                async for group in groups:
                    yield group
        except UnknownSchema:
            with_schema = replace(asked.request, packed=asked.packed)
            async with aclosing(self._send(with_schema, attempt)) as groups:
                async for group in groups:
                    yield group

    def _is_complete(self, token_ids: Sequence[int], options: Mapping[str, Any]) -> bool:
        """Return whether tokens are a whole answer, because of an end token or a stop string."""
        if token_ids[-1] in end_ids(options, self._facts.end_ids):
            return True
        text = self._facts.tokenizer.decode(token_ids)
        return any(each in text for each in options.get("stop_strings") or ())

    def _completion(
        self, asked: _Asked, token_ids: tuple[int, ...], answer: ReplicaAnswer | None, timing: Timing
    ) -> Completion:
        """Return the completion of an answer. Several replicas may each have generated a part of it.

        Args:
            answer: What the last replica reports; None if it ended after the last token.
            timing: As measured here, if there is no report.
        """
        plan = asked.plan
        if answer is None:
            ended = self._is_complete(token_ids, asked.request.options)
            reason = FinishReason.STOP if ended else FinishReason.LENGTH
            answer = ReplicaAnswer(reason, _planned_usage(plan, len(token_ids)), timing)
        usage = answer.usage
        num_given = len(token_ids) - usage.num_generated_tokens  # the replica counts them as tokens of the prompt
        num_prefilled = min(num_given, usage.num_new_tokens)
        tokenizer = self._facts.tokenizer
        text = whole_text(tokenizer.decode, token_ids)
        parts = asked.reader.parts(text)
        return Completion(
            text=parts.text,
            reasoning=parts.reasoning,
            tool_calls=parts.calls,
            output_format=asked.request.options["output"],
            token_ids=token_ids,
            finish_reason=answer.finish_reason,
            level=plan.level,
            repair=str(plan.repair),
            lossy=any(Codec(each.part.encoding.codec).lossy for each in plan.reuse),
            usage=replace(
                usage,
                num_new_tokens=usage.num_new_tokens - num_prefilled,
                num_history_tokens=usage.num_history_tokens - (num_given - num_prefilled),
                num_generated_tokens=len(token_ids),
            ),
            timing=answer.timing,
            plan=plan,
        )


class _Asked(NamedTuple):
    """A request of a listener, with its plan and its packed schema."""

    request: RemoteRequest
    packed: str | None
    plan: Plan
    reader: AnswerReader
    listener: Listener


def _planned_usage(plan: Plan, num_generated_tokens: int) -> Usage:
    """Return the usage that a plan expects, for an answer whose replica ended before it could report."""
    return Usage(
        num_reused_tokens=plan.num_reused_tokens,
        num_history_tokens=0,
        num_new_tokens=plan.num_new_tokens,
        num_repaired_tokens=plan.num_repaired_tokens,
        num_generated_tokens=num_generated_tokens,
        num_encoded_tokens=0,
        copied_bytes=0,
        kept_bytes=0,
        moved_bytes=0,
        modules=(),
    )


def _placement(facts: ReplicaFacts, positions: str) -> Placement:
    """Return where a request has cached text. Replicas can surely move keys if they do so by default."""
    if positions == Placement.CLOSED and facts.positions is not Placement.CLOSED:
        raise UnsupportedModel("the replicas have fixed positions: positions='closed' is not allowed here")
    return Placement(positions)


def _affinity(prompt: PromptSource) -> str:
    """Return the beginning of a chat, which all of its turns have: their history is in the memory of one replica."""
    if not isinstance(prompt, list | tuple):
        return ""
    first = next((index for index, each in enumerate(prompt) if each.get("role") == "user"), 0)
    return json.dumps(prompt[: first + 1], sort_keys=True)
