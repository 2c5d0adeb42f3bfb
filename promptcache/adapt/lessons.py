"""Lessons: prompts as an engine lays them out, and the same text as plain prefill has it.

A lesson of a number is always the same. So an interrupted training goes on with the lessons that it would have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from promptcache.adapt.sources import DrawnPrompt, LessonSource, has_adapted, plan_of
from promptcache.audit import joined_ids, prompt_pieces
from promptcache.diagnostics import ContextLengthExceeded, InvalidValue
from promptcache.engine import Engine
from promptcache.layout import RequestTokens
from promptcache.runtime import check_room, reference_tokens

_MAX_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A prompt to learn from.

    Attributes:
        tokens: The KV parts and the new tokens of its request.
        whole_ids: The tokens of plain prefill.
    """

    tokens: RequestTokens
    whole_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Draws lessons from sources, which have equal shares.

    Attributes:
        max_tokens: Limit of the tokens of one forward pass: prompt, answer, and the contexts of the modules.
        max_new_tokens: Limit of the tokens of an answer.
    """

    engine: Engine
    sources: Sequence[LessonSource]
    seed: int
    max_tokens: int
    max_new_tokens: int

    def lesson(self, number: int, *, held_out: bool = False) -> Lesson:
        """Return the lesson of a number. Held-out lessons have numbers of their own.

        Raises:
            InvalidValue: No prompt of a source can be learned from: an adapter takes part in none, or all are too long.
        """
        rng = Random(f"{'validation' if held_out else 'training'} {self.seed} {number}")
        source = rng.choice(self.sources)
        for _ in range(_MAX_DRAWS):
            drawn = source.draw(rng, held_out=held_out)
            if drawn is not None and (lesson := self._lesson(drawn)) is not None:
                return lesson
        raise InvalidValue(
            f"of {_MAX_DRAWS} random prompts none can be learned from: each has no module that is encoded behind "
            f"one of several others or behind stand-ins, or more than {self.max_tokens} tokens with its answer and the "
            "contexts of its modules (max_tokens)"
        )

    def _lesson(self, drawn: DrawnPrompt) -> Lesson | None:
        engine = self.engine
        plan = plan_of(engine, drawn)
        if not has_adapted(plan):
            return None
        try:
            check_room(plan, self.max_new_tokens, engine.model.context_length)
        except ContextLengthExceeded:
            return None
        if len(reference_tokens(plan.tokens)) + self.max_new_tokens > self.max_tokens:
            return None
        whole_ids = joined_ids(tuple(prompt_pieces(plan, engine.tokenizer)), engine.tokenizer)
        return Lesson(tokens=plan.tokens, whole_ids=whole_ids)
