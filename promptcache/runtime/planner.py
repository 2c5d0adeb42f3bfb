"""From a prompt document to its plan: read, find the schema, check, plan. No model work.

Plans of recent texts are cached, as long as their schema is not replaced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from promptcache.diagnostics import InvalidValue, shown
from promptcache.language import (
    CHAT_SCHEMA,
    ChatMessages,
    Prompt,
    Repair,
    Schema,
    check_schema,
    is_markup,
    open_prompt,
    resolve_prompt,
)
from promptcache.layout import Plan, check_positions
from promptcache.locks import new_lock
from promptcache.runtime.catalog import Catalog, SchemaState, schema_state
from promptcache.runtime.turns import ChatTurn, with_turns
from promptcache.tokenizer import Tokenizer

PromptSource: TypeAlias = str | Path | Prompt | ChatMessages
"""XML text (starting with "<"), a path, a `Prompt`, or a list of chat messages."""

DEFAULT_NEW_TOKENS = 256
"""Default limit of generated tokens; less if the context ends earlier."""

MAX_REMEMBERED_BYTES = 16 * 2**20
"""Limit of all cached plans by `_estimated_bytes`. A plan shares the encodings of its schema."""


class Planner:
    """Plans prompts against the schemas of a catalog. Thread-safe.

    Prompts without a schema are planned against an empty one of the planner, `CHAT_SCHEMA`, which no catalog has.
    """

    def __init__(
        self,
        catalog: Catalog,
        tokenizer: Tokenizer,
        context_length: int,
        repair: Repair,
        end_ids: Callable[[], Sequence[int]],
    ) -> None:
        """Create a planner.

        Args:
            context_length: Number of positions of the model.
            repair: The setting of prompts and schemas that state none.
            end_ids: Returns the tokens that end an answer.
        """
        self._catalog = catalog
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._repair = repair
        self._end_ids = end_ids
        self._remembered: OrderedDict[tuple[str, Repair | None], tuple[SchemaState, Plan]] = OrderedDict()
        self._remembered_bytes = 0
        self._lock = new_lock()

    @cached_property
    def _chat(self) -> SchemaState:
        """The state of the empty schema; BOS is its only text."""
        empty = replace(check_schema(Schema("empty")), name=CHAT_SCHEMA)
        return schema_state(empty, self._tokenizer, self._context_length)

    def plan(self, prompt: PromptSource, repair: str | None = None) -> Plan:
        """Return the plan of a prompt; arguments and errors are those of `planned`."""
        return self.planned(prompt, repair)[1]

    def plan_chat(self, prompt: Prompt, turns: Sequence[ChatTurn], question: str, repair: str | None) -> Plan:
        """Return the plan of a conversation on top of a prompt, up to the answer to `question`."""
        asked = None if repair is None else Repair.parse(repair)
        state = self._state(prompt)
        selection = resolve_prompt(prompt, state.schema)
        selection, answers = with_turns(selection, state.layout, turns, question, self._tokenizer, self._end_ids())
        return state.plan(selection, self._tokenizer, asked or state.schema.repair or self._repair, answers)

    def planned(self, prompt: PromptSource, repair: str | None = None) -> tuple[SchemaState, Plan]:
        """Return the plan of a prompt, and the state of its schema that it was made with.

        Args:
            repair: The repair of this prompt; None means that of its schema, else that of the planner.

        Raises:
            PromptError: The prompt is not valid; lists every fault with its place.
            UnknownSchema: The catalog has no schema of that name.
            InvalidValue: There is no such repair.
        """
        asked = None if repair is None else Repair.parse(repair)
        if isinstance(prompt, str) and (known := self._recall((prompt, asked))) is not None:
            return known
        read = open_prompt(prompt)
        state = self._state(read)
        selection = resolve_prompt(read, state.schema)
        plan = state.plan(selection, self._tokenizer, asked or state.schema.repair or self._repair)
        if is_markup(prompt):  # the file of a path may change
            self._remember((prompt, asked), (state, plan))
        return state, plan

    def _state(self, prompt: Prompt) -> SchemaState:
        return self._chat if prompt.schema == CHAT_SCHEMA else self._catalog.find(prompt.schema)

    def _recall(self, key: tuple[str, Repair | None]) -> tuple[SchemaState, Plan] | None:
        with self._lock:
            known = self._remembered.get(key)
            if known is None:
                return None
            if self._catalog.get(known[0].schema.name) is not known[0]:  # the schema was replaced
                self._forget(key)
                return None
            self._remembered.move_to_end(key)
            return known

    def _remember(self, key: tuple[str, Repair | None], planned: tuple[SchemaState, Plan]) -> None:
        with self._lock:
            self._forget(key)  # another thread may have planned the same
            self._remembered[key] = planned
            self._remembered_bytes += _estimated_bytes(key[0], planned[1])
            while self._remembered_bytes > MAX_REMEMBERED_BYTES:
                self._forget(next(iter(self._remembered)))

    def _forget(self, key: tuple[str, Repair | None]) -> None:
        if (known := self._remembered.pop(key, None)) is not None:
            self._remembered_bytes -= _estimated_bytes(key[0], known[1])


def _estimated_bytes(text: str, plan: Plan) -> int:
    return 4096 + 2 * len(text) + 64 * plan.num_new_tokens + 128 * len(plan.reuse)


def several(prompts: Iterable[PromptSource]) -> tuple[PromptSource, ...]:
    """Return the prompts of a batch.

    Raises:
        InvalidValue: `prompts` is a single prompt, such as a text or one list of chat messages.
    """
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise InvalidValue(f"prompts={shown(prompts)}: a batch is a list of prompts; use generate() for a single one")
    batch = tuple(prompts)
    if any(isinstance(each, Mapping) for each in batch):
        raise InvalidValue(
            f"prompts={shown(prompts)}: a list of messages is a single prompt; use generate(), or a list of such lists"
        )
    return batch


def check_room(plan: Plan, max_new_tokens: int | None, context_length: int) -> int:
    """Return the maximum number of generated tokens.

    Args:
        max_new_tokens: The number that the caller asked for; None means the default, or less if the context ends
            earlier.

    Raises:
        ContextLengthExceeded: Prompt and answer need more positions than `context_length`.
    """
    room = context_length - plan.stop
    limit = max_new_tokens if max_new_tokens is not None else max(1, min(DEFAULT_NEW_TOKENS, room))
    check_positions(plan, context_length, limit)
    return limit
