"""From a prompt document to its plan: read, find the schema, check, plan – or remember having done so.

Comes in: a prompt in any form. Goes out: its plan. No model work. Text that was planned
lately against the same schema is planned already.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from promptcache.diagnostics import InvalidValue, shown
from promptcache.language import Prompt, resolve_prompt
from promptcache.language.load import is_markup, open_prompt
from promptcache.layout import Plan, check_positions
from promptcache.locks import new_lock
from promptcache.runtime.catalog import Catalog
from promptcache.runtime.schema_state import SchemaState
from promptcache.tokenizer import Tokenizer

PromptSource: TypeAlias = str | Path | Prompt
"""XML text (starting with "<"), a path, or a `Prompt`."""

DEFAULT_NEW_TOKENS = 256
"""Tokens generated at most when a request does not say; fewer where the context ends earlier."""

MAX_REMEMBERED = 1024
"""Plans kept; a plan is a few kilobytes, for it shares the schema's encodings."""


class Planner:
    """Plans prompts against the schemas of a catalog. Any thread may call it."""

    def __init__(self, catalog: Catalog, tokenizer: Tokenizer) -> None:
        self._catalog = catalog
        self._tokenizer = tokenizer
        self._remembered: OrderedDict[str, tuple[SchemaState, Plan]] = OrderedDict()
        self._lock = new_lock()

    def plan(self, prompt: PromptSource) -> Plan:
        """Return the plan of a prompt.

        Raises:
            PromptError: Every fault with its place.
            UnknownSchema: No schema of that name is in the catalog.
        """
        if isinstance(prompt, str) and (known := self._recall(prompt)) is not None:
            return known
        read = open_prompt(prompt)
        state = self._catalog.find(read.schema)
        selection = resolve_prompt(read, state.schema)
        plan = state.plan(selection, self._tokenizer)
        if is_markup(prompt):  # what a path leads to may be another text the next time
            self._remember(prompt, (state, plan))
        return plan

    def _recall(self, text: str) -> Plan | None:
        with self._lock:
            known = self._remembered.get(text)
            if known is None:
                return None
            if self._catalog.get(known[0].schema.name) is not known[0]:  # the schema was replaced
                del self._remembered[text]
                return None
            self._remembered.move_to_end(text)
            return known[1]

    def _remember(self, text: str, planned: tuple[SchemaState, Plan]) -> None:
        with self._lock:
            self._remembered[text] = planned
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)


def several(prompts: Iterable[PromptSource]) -> Iterable[PromptSource]:
    """Return the prompts of a batch.

    Raises:
        InvalidValue: It is a single one: the letters of a text are no prompts.
    """
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise InvalidValue(f"prompts={shown(prompts)}: a batch is a list of prompts; use generate() for a single one")
    return prompts


def check_room(plan: Plan, max_new_tokens: int | None, context_length: int) -> int:
    """Return how many tokens an answer may have.

    Args:
        max_new_tokens: What was asked for; None means as many as there is room for, up to a default.

    Raises:
        ContextLengthExceeded: Prompt and answer need more positions than there are.
    """
    room = context_length - plan.stop
    limit = max_new_tokens if max_new_tokens is not None else max(1, min(DEFAULT_NEW_TOKENS, room))
    check_positions(plan, context_length, limit)
    return limit
