"""From a prompt document to its plan: read, find the schema, check, plan. No model work.

Plans of recent texts are cached, as long as their schema is not replaced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from promptcache.diagnostics import InvalidValue, shown
from promptcache.language import Prompt, is_markup, open_prompt, resolve_prompt
from promptcache.layout import Plan, check_positions
from promptcache.locks import new_lock
from promptcache.runtime.catalog import Catalog, SchemaState
from promptcache.tokenizer import Tokenizer

PromptSource: TypeAlias = str | Path | Prompt
"""XML text (starting with "<"), a path, or a `Prompt`."""

DEFAULT_NEW_TOKENS = 256
"""Default limit of generated tokens; less if the context ends earlier."""

MAX_REMEMBERED = 1024
"""Number of cached plans. A plan takes a few kilobytes, because it shares the encodings of its schema."""


class Planner:
    """Plans prompts against the schemas of a catalog. Thread-safe."""

    def __init__(self, catalog: Catalog, tokenizer: Tokenizer) -> None:
        self._catalog = catalog
        self._tokenizer = tokenizer
        self._remembered: OrderedDict[str, tuple[SchemaState, Plan]] = OrderedDict()
        self._lock = new_lock()

    def plan(self, prompt: PromptSource) -> Plan:
        """Return the plan of a prompt.

        Raises:
            PromptError: The prompt is not valid; lists every fault with its place.
            UnknownSchema: The catalog has no schema of that name.
        """
        if isinstance(prompt, str) and (known := self._recall(prompt)) is not None:
            return known
        read = open_prompt(prompt)
        state = self._catalog.find(read.schema)
        selection = resolve_prompt(read, state.schema)
        plan = state.plan(selection, self._tokenizer)
        if is_markup(prompt):  # the file of a path may change
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
        InvalidValue: `prompts` is a single prompt, such as a text.
    """
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise InvalidValue(f"prompts={shown(prompts)}: a batch is a list of prompts; use generate() for a single one")
    return prompts


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
