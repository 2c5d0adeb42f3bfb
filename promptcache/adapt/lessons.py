"""Lessons: prompts as an engine lays them out, and the same text as plain prefill has it.

A lesson of a number is always the same. So an interrupted training goes on with the lessons that it would have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from promptcache.adapt.sources import DrawnPrompt, LessonSource, plan_of
from promptcache.audit import joined_ids, prompt_pieces
from promptcache.diagnostics import ContextLengthExceeded, InvalidValue
from promptcache.engine import Engine
from promptcache.layout import Level, RequestTokens
from promptcache.runtime import check_room, reference_tokens

MAX_QUESTION_TOKENS = 32
"""Limit of the tokens before an answer that are compared."""

_MAX_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A prompt to learn from.

    Attributes:
        tokens: The KV parts and the new tokens of its request.
        whole_ids: The tokens of plain prefill.
        num_shared: Number of tokens at the end, the last ones of the question, that both have in common. At least 1.
    """

    tokens: RequestTokens
    whole_ids: tuple[int, ...]
    num_shared: int


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
            InvalidValue: No prompt of a source can be learned from: all are exact, or too long.
        """
        rng = Random(f"{'validation' if held_out else 'training'} {self.seed} {number}")
        source = rng.choice(self.sources)
        for _ in range(_MAX_DRAWS):
            drawn = source.draw(rng, held_out=held_out)
            if drawn is not None and (lesson := self._lesson(drawn)) is not None:
                return lesson
        raise InvalidValue(
            f"of {_MAX_DRAWS} random prompts none can be learned from: each is exact, or has more than "
            f"{self.max_tokens} tokens with its answer and the contexts of its modules (max_tokens)"
        )

    def _lesson(self, drawn: DrawnPrompt) -> Lesson | None:
        engine = self.engine
        plan = plan_of(engine, drawn)
        if plan.level is Level.EXACT:
            return None
        try:
            check_room(plan, self.max_new_tokens, engine.model.context_length)
        except ContextLengthExceeded:
            return None
        if len(reference_tokens(plan.tokens)) + self.max_new_tokens > self.max_tokens:
            return None
        whole_ids = joined_ids(tuple(prompt_pieces(plan, engine.tokenizer)), engine.tokenizer)
        num_shared = _num_shared(plan.tokens, whole_ids)
        return Lesson(tokens=plan.tokens, whole_ids=whole_ids, num_shared=num_shared) if num_shared else None


def _num_shared(tokens: RequestTokens, whole_ids: Sequence[int]) -> int:
    """Return the number of new tokens behind all reused ones that plain prefill has as well."""
    last = max((part.last for part in tokens.parts), default=-1)
    own = [each for each, position in zip(tokens.token_ids, tokens.position_ids, strict=True) if position > last]
    limit = min(len(own), len(whole_ids), MAX_QUESTION_TOKENS)
    return next((count for count in range(limit) if own[-1 - count] != whole_ids[-1 - count]), limit)
