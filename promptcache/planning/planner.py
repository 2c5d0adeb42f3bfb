"""From a prompt document to its plan: read, find the schema, check, plan. No model work.

Plans of recent texts are cached, as long as their schema is not replaced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from promptcache.diagnostics import InvalidValue, PromptError, Severity, shown
from promptcache.language import (
    CHAT_SCHEMA,
    ChatMessages,
    Prompt,
    Repair,
    chat_schema,
    is_markup,
    open_prompt,
    resolve_prompt,
)
from promptcache.layout import Plan, check_positions
from promptcache.locks import new_lock
from promptcache.options import DEFAULT_NEW_TOKENS, checked_options
from promptcache.planning.catalog import Catalog
from promptcache.planning.served_schema import ServedSchema, serve_schema
from promptcache.planning.turns import ChatPrompt, with_turns
from promptcache.tokenizer import FROZEN_DATE, Conversations, Tokenizer

PromptSource: TypeAlias = str | Path | Prompt | ChatMessages
"""XML text (starting with "<"), a path, a `Prompt`, or a list of chat messages."""

TemplateOptions: TypeAlias = Mapping[str, Any] | None
"""Variables of a chat template; None means none."""

MAX_REMEMBERED_BYTES = 16 * 2**20
"""Limit of all cached plans, as estimated. A plan shares the encodings of its schema."""


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
        strict_template: bool = False,
    ) -> None:
        """Create a planner.

        Args:
            context_length: Number of positions of the model.
            repair: The setting of prompts and schemas that state none.
            strict_template: Refuse prompts whose text is not what the chat template writes, instead of a warning.
        """
        self._catalog = catalog
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._repair = repair
        self._strict_template = strict_template
        self._conversations = Conversations(tokenizer)
        self._today: tuple[date, Conversations] | None = None
        # By a text and what was asked for it; each with its schema and an estimate of its bytes.
        self._remembered: OrderedDict[tuple[str, Repair | None], tuple[ServedSchema, Plan, int]] = OrderedDict()
        self._remembered_bytes = 0
        self._lock = new_lock()

    @cached_property
    def _chat(self) -> ServedSchema:
        """The empty schema."""
        return serve_schema(chat_schema(), self._tokenizer, self._context_length)

    def plan(
        self,
        prompt: PromptSource | ChatPrompt,
        repair: str | None = None,
        template_kwargs: TemplateOptions = None,
    ) -> Plan:
        """Return the plan of a prompt.

        Args:
            repair: The repair of this prompt; None means that of its schema, else that of the planner.
            template_kwargs: Variables of the chat template, such as `enable_thinking`.

        Raises:
            PromptError: The prompt is not valid; lists every fault with its place.
            UnknownSchema: The catalog has no schema of that name.
            InvalidValue: There is no such repair, or `template_kwargs` is not a mapping of names.
        """
        checked_options({"template_kwargs": template_kwargs})
        asked = None if repair is None else Repair.parse(repair)
        if isinstance(prompt, str) and not template_kwargs:
            with self._lock:
                known = self._remembered.get((prompt, asked))
                if known is not None and self._catalog.serves(known[0]):
                    self._remembered.move_to_end((prompt, asked))
                    return known[1]
        read = prompt.prompt if isinstance(prompt, ChatPrompt) else open_prompt(prompt)
        self._catalog.check_open()
        served = self._chat if read.schema == CHAT_SCHEMA else self._catalog.find(read.schema)
        selection, answers = resolve_prompt(read, served.schema, served.members), dict[int, tuple[int, ...]]()
        if isinstance(prompt, ChatPrompt):
            selection, answers = with_turns(selection, served.layout, prompt)
        chosen = asked or served.schema.repair or self._repair
        plan = served.plan(selection, chosen, answers, self._conversations_of(served, template_kwargs))
        self._catalog.describe_plan(plan)
        differences = [each for each in plan.warnings if each.code == "PC514"]
        if differences and self._strict_template:
            raise PromptError(replace(each, severity=Severity.ERROR) for each in differences)
        if is_markup(prompt) and not template_kwargs:  # the file of a path may change
            self._remember(prompt, asked, served, plan)
        return plan

    def fitting(self, prompt: PromptSource, repair: str | None = None, num_new_tokens: int = 0) -> Plan:
        """Return the plan of a prompt that leaves positions for generated tokens."""
        plan = self.plan(prompt, repair)
        check_room(plan, num_new_tokens, self._context_length)
        return plan

    def _conversations_of(self, served: ServedSchema, template_kwargs: TemplateOptions) -> Conversations:
        """Return the chat template for a request: with the date of today for plain chats, which are not cached."""
        now = datetime.now()
        is_chat = served.schema.is_chat
        if template_kwargs:
            return Conversations(self._tokenizer, template_kwargs, now if is_chat else FROZEN_DATE)
        if not is_chat:
            return self._conversations
        today = self._today
        if today is None or today[0] != now.date():
            today = self._today = now.date(), Conversations(self._tokenizer, date=now)
        return today[1]

    def _remember(self, text: str, asked: Repair | None, served: ServedSchema, plan: Plan) -> None:
        num_bytes = 4096 + 2 * len(text) + 112 * plan.num_new_tokens + 136 * len(plan.pieces)
        with self._lock:
            if (earlier := self._remembered.pop((text, asked), None)) is not None:
                self._remembered_bytes -= earlier[2]  # of a schema that was replaced, or of another thread
            self._remembered[text, asked] = (served, plan, num_bytes)
            self._remembered_bytes += num_bytes
            while self._remembered_bytes > MAX_REMEMBERED_BYTES:
                _, (*_, num_bytes) = self._remembered.popitem(last=False)
                self._remembered_bytes -= num_bytes


def checked_batch(prompts: Iterable[PromptSource]) -> tuple[PromptSource, ...]:
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
