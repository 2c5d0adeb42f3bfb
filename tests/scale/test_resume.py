"""Streams whose replica ends: the client gets the tokens of an undisturbed run, each one once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.scale import MAX_RESUBMISSIONS, Attempt, TokenGroup, resumed

END = 0
PROMPT = (7, 3, 9)


class Died(Exception):
    """The replica has ended."""


class Other(Exception):
    """An error of the request."""


@dataclass
class Replicas:
    """Fake replicas. Each token depends on all tokens before it and on a draw of the seeded generator.

    Attributes:
        deaths: For each attempt that is disturbed, the number of its tokens that are sent before the error.
        attempts: What was submitted.
        open: Streams that were not closed.
    """

    deaths: Sequence[int] = ()
    error: type[Exception] = Died
    group: int = 1
    attempts: list[Attempt] = field(default_factory=list)
    open: int = 0

    async def submit(self, attempt: Attempt) -> AsyncGenerator[TokenGroup]:
        """Generate what an attempt asks for."""
        number = len(self.attempts)
        self.attempts.append(attempt)
        self.open += 1
        try:
            death = self.deaths[number] if number < len(self.deaths) else None
            draws = random.Random(attempt.seed)
            for _ in attempt.given:
                draws.random()
            seen, group = [*PROMPT, *attempt.given], list[int]()
            for count in range(attempt.max_new_tokens):
                if count == death:
                    raise self.error
                token = hash((*seen, draws.random())) % 12
                token = max(token, 1) if count < attempt.min_new_tokens else token
                seen.append(token)
                group.append(token)
                if len(group) == self.group or token == END:
                    yield TokenGroup(token_ids=tuple(group))
                    group = []
                if token == END:
                    break
            if group:
                yield TokenGroup(token_ids=tuple(group))
            if death is not None:
                raise self.error
            yield TokenGroup(completion="done")
        finally:
            self.open -= 1


def _run(replicas: Replicas, attempt: Attempt) -> tuple[list[int], Any, Exception | None]:
    """Return the tokens that a client gets, the completion, and the error."""

    async def read() -> tuple[list[int], Any, Exception | None]:
        tokens: list[int] = []
        completion = None
        try:
            async for group in resumed(replicas.submit, attempt, lambda given: given[-1] == END, Died):
                tokens.extend(group.token_ids)
                completion = group.completion
        except (Died, Other) as error:
            return tokens, completion, error
        return tokens, completion, None

    return asyncio.run(read())


ATTEMPTS = st.builds(
    Attempt, max_new_tokens=st.integers(1, 20), seed=st.integers(0, 2**32), min_new_tokens=st.integers(0, 25)
)


@pytest.mark.law
@given(ATTEMPTS, st.lists(st.integers(0, 21), max_size=MAX_RESUBMISSIONS), st.integers(1, 8))
def test_a_resumed_stream_is_the_undisturbed_one(attempt: Attempt, deaths: list[int], group: int) -> None:
    """Wherever replicas end, the client gets the tokens of an undisturbed run, and each attempt generates new ones only."""
    replicas = Replicas(deaths, group=group)
    expected, _, _ = _run(Replicas(), attempt)

    tokens, completion, error = _run(replicas, attempt)

    assert (tokens, error, replicas.open) == (expected, None, 0)
    assert len(replicas.attempts) <= 1 + len(deaths)
    assert completion == ("done" if len(replicas.attempts) > len(deaths) else None)
    for each in replicas.attempts:
        assert each.given == tuple(expected[: len(each.given)])
        assert len(each.given) + each.max_new_tokens == attempt.max_new_tokens


@given(ATTEMPTS, st.integers(0, 20))
def test_a_stream_is_submitted_again_a_limited_number_of_times(attempt: Attempt, given_tokens: int) -> None:
    """When replicas end again and again, the last error is raised, and the tokens until then are right."""
    replicas = Replicas([given_tokens, *[0] * 9])
    expected, _, _ = _run(Replicas(), attempt)

    tokens, _, error = _run(replicas, attempt)

    assert tokens == expected[:given_tokens]
    if given_tokens < len(expected):
        assert (type(error), len(replicas.attempts)) == (Died, 1 + MAX_RESUBMISSIONS)
    else:
        assert (error, len(replicas.attempts)) == (None, 1)


@given(ATTEMPTS, st.integers(0, 20))
def test_other_errors_are_raised_at_once(attempt: Attempt, given_tokens: int) -> None:
    """An error that is not the end of a replica is passed on, and nothing is submitted again."""
    replicas = Replicas([given_tokens], error=Other)

    _, _, error = _run(replicas, attempt)

    assert (type(error), len(replicas.attempts), replicas.open) == (Other, 1, 0)


def test_a_client_that_leaves_closes_the_stream_of_the_replica() -> None:
    """The attempt is closed with the stream, so that its row leaves the batch."""
    replicas = Replicas()

    async def leave() -> int:
        groups = resumed(replicas.submit, Attempt(max_new_tokens=9, seed=1, min_new_tokens=9), lambda _: False, Died)
        await anext(groups)
        await groups.aclose()
        return replicas.open

    assert asyncio.run(leave()) == 0
