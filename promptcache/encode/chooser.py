"""Choose the cached tokens that a request computes again because its new tokens attend to them most."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from promptcache.encode.encode import CHUNK_TOKENS
from promptcache.kv import KV
from promptcache.layout import Encoding, Plan, positions_to_repair
from promptcache.locks import new_lock
from promptcache.model import Model
from promptcache.rows import Copies, attention_weights

MAX_CHOICES = 1000
"""Limit of the choices that are kept, by last use."""


class Chooser:
    """Makes plans with `repair="attended-K"` complete. Thread-safe.

    A choice depends on the modules of a prompt and on its text up to the first answer. So the turns of a conversation
    have one choice, and history serves them.
    """

    def __init__(self, model: Model, copies: Copies, max_choices: int) -> None:
        """Create a chooser.

        Args:
            max_choices: Limit of the choices that are kept; 0 without history, which they are for.
        """
        self._model, self._copies, self._max_choices = model, copies, max_choices
        self._chosen: OrderedDict[int, frozenset[int]] = OrderedDict()  # positions, by a hash of the question
        self._lock = new_lock()

    def choose(self, plan: Plan, kv_of: Mapping[Encoding, KV], salt: str | None) -> Plan:
        """Return the plan that computes the chosen tokens again; the same plan if it has nothing to choose.

        Args:
            kv_of: KV of the encodings that the plan has parts of.
            salt: A choice is kept for requests of the same salt, so that no other one shows by its time what was asked.
        """
        if not plan.awaits_choice:
            return plan
        question = plan.question
        parts = tuple((part.encoding.digest, part.start, part.stop, part.shift) for part in question.parts)
        key = hash((parts, question.token_ids, question.position_ids, plan.repair, salt))
        with self._lock:
            if (positions := self._chosen.get(key)) is not None:
                self._chosen.move_to_end(key)
                return plan.with_choice(positions)
        weights = attention_weights(question, kv_of, self._model, self._copies, CHUNK_TOKENS)
        positions = positions_to_repair(plan.pieces, plan.repair, weights)
        with self._lock:
            self._chosen[key] = positions
            if len(self._chosen) > self._max_choices:
                self._chosen.popitem(last=False)
        return plan.with_choice(positions)
