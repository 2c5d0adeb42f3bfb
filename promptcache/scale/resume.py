"""Streams that survive the end of their replica: the rest is submitted again, behind the tokens that were given.

Tokens that a client has are never generated again. The next replica prefills them as own tokens of the request, so
that the answer goes on exactly, even where rounding would make another replica choose another token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

MAX_RESUBMISSIONS = 2
"""How often one stream is submitted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Tokens that a replica is asked to generate; the prompt and its options come beside it.

    A replica prefills the tokens `given` as own tokens of the request, after those of the prompt, and generates
    `max_new_tokens` more at most. If it samples, it seeds the generator of the request with `seed` and takes
    `len(given)` draws from it first.

    Attributes:
        given: Generated tokens that the client has.
        max_new_tokens: How many may still be generated.
        min_new_tokens: How many must still be generated.
        seed: The same in each attempt. A front that gets none from the client draws one.
    """

    max_new_tokens: int
    seed: int
    given: tuple[int, ...] = ()
    min_new_tokens: int = 0

    def after(self, token_ids: Sequence[int]) -> Attempt:
        """Return what is left to do after more tokens."""
        return replace(
            self,
            given=(*self.given, *token_ids),
            max_new_tokens=self.max_new_tokens - len(token_ids),
            min_new_tokens=max(0, self.min_new_tokens - len(token_ids)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGroup:
    """Tokens that a replica sends together.

    Attributes:
        logprobs: The log-probabilities of each token, if they were asked for.
        completion: The completion of the attempt, in the last group of an answer. It counts what this attempt
            generated; tokens of earlier attempts are prefilled tokens there.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Any, ...] = ()
    completion: Any = None


Submit: TypeAlias = Callable[[Attempt], AsyncGenerator[TokenGroup]]
"""Sends an attempt to a replica, and yields the groups of its answer. The last one has a completion."""


async def resumed(
    submit: Submit,
    attempt: Attempt,
    is_complete: Callable[[Sequence[int]], bool],
    death: type[Exception] | tuple[type[Exception], ...],
) -> AsyncGenerator[TokenGroup]:
    """Yield the groups of an answer, and submit it again when its replica ends, up to `MAX_RESUBMISSIONS` times.

    If the replica ends between the last token and the completion, the groups end without a completion.

    Args:
        submit: Sends attempts to replicas.
        attempt: The first attempt.
        is_complete: Whether generated tokens are a whole answer, because of an end token or a stop string.
        death: Errors which say that a replica has ended. All others are raised at once.

    Raises:
        Exception: The error of the last attempt.
    """
    for left in range(MAX_RESUBMISSIONS, -1, -1):
        try:
            async with aclosing(submit(attempt)) as groups:
                async for group in groups:
                    attempt = attempt.after(group.token_ids)
                    yield group
            return
        except death:
            if attempt.given and (attempt.max_new_tokens <= 0 or is_complete(attempt.given)):
                return
            if not left:
                raise
