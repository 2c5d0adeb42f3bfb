"""`agenerate` and `astream`: the answers of `generate` in event loops, and requests that end with their tasks."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache import Completion
from promptcache.diagnostics import ContextLengthExceeded, InvalidGeneration, PromptError
from promptcache.engine import Engine
from tests.conftest import law_examples
from tests.engine.asking import engine_of
from tests.engine.test_generation import Broken

PROMPTS: list[Any] = [
    '<prompt schema="travel"><paris/><user>Where to?</user></prompt>',
    '<prompt schema="travel"><miami/><user>Tell me more.</user></prompt>',
    [{"role": "user", "content": "Hello"}],
]
OPTIONS: list[dict[str, Any]] = [
    {"do_sample": False},
    {"do_sample": False, "logprobs": 1},
    {"do_sample": True, "seed": 3, "temperature": 2.0},
    {"do_sample": True, "seed": 3, "typical_p": 0.9},  # transformers answers
    {"do_sample": False, "repair": "all"},
]
GREEDY: dict[str, Any] = {"do_sample": False}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_of() as engine:
        yield engine


ENGINE = engine_of()
ASKED = st.tuples(st.sampled_from(PROMPTS), st.sampled_from(OPTIONS), st.integers(1, 9))


@settings(max_examples=law_examples(0.2))
@given(asked=st.lists(ASKED, min_size=1, max_size=5))
def test_answers_are_those_of_generate(asked: list[tuple[Any, dict[str, Any], int]]) -> None:
    """So are the pieces of streams. All run at the same time, and each event loop is a new one."""

    async def run() -> list[Any]:
        chosen = [(prompt, {"max_new_tokens": size, **options}) for prompt, options, size in asked]
        whole = (ENGINE.agenerate(prompt, **options) for prompt, options in chosen)
        return await asyncio.gather(*whole, *(read(ENGINE, prompt, **options) for prompt, options in chosen))

    answers = asyncio.run(run())
    for (prompt, options, size), whole, (text, made) in zip(asked, answers, answers[len(asked) :], strict=False):
        expected = ENGINE.generate(prompt, max_new_tokens=size, **options)
        assert whole.token_ids == made.token_ids == expected.token_ids
        assert whole.text == made.text == text == expected.text
        assert (whole.logprobs is None) == (expected.logprobs is None)


class Held:
    """A stopping criterion that stops nothing. It waits at its first call until it may go on."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: Any, **__: Any) -> bool:
        self.num_calls += 1
        self.reached.set()
        return not self.go_on.wait(60)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 60)


async def read(engine: Engine, prompt: Any, **options: Any) -> tuple[str, Any]:
    async with engine.astream(prompt, **options) as stream:
        text = "".join([piece async for piece in stream])
    return text, stream.completion


async def cancelled_task(engine: Engine, options: dict[str, Any], held: Held, ask: Any = Engine.agenerate) -> None:
    task = asyncio.create_task(ask(engine, PROMPTS[0], **options))
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def left_block(engine: Engine, options: dict[str, Any], held: Held) -> None:
    async with engine.astream(PROMPTS[0], **options) as stream:
        task = asyncio.create_task(anext(stream))
        await held.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [piece async for piece in stream] == []


async def deleted_stream(engine: Engine, options: dict[str, Any], held: Held) -> None:
    stream = engine.astream(PROMPTS[0], **options)
    task = asyncio.create_task(anext(stream))
    await held.wait()
    del stream
    held.go_on.set()
    await task
    del task
    gc.collect()


@pytest.mark.parametrize("leave", [cancelled_task, partial(cancelled_task, ask=read), left_block, deleted_stream])
def test_the_end_of_a_task_cancels_its_request(engine: Engine, leave: Callable[..., Any]) -> None:
    """A request that no task waits for takes no more steps, while another one is answered."""
    held = Held()

    async def run() -> int:
        await leave(engine, {"max_new_tokens": 500, "stopping_criteria": [held], **GREEDY}, held)
        before = held.num_calls
        held.go_on.set()
        await engine.agenerate(PROMPTS[1], max_new_tokens=20, **GREEDY)
        return held.num_calls - before

    assert asyncio.run(run()) <= 2


def test_a_task_that_is_cancelled_while_its_request_is_planned(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    planning, released, plan = threading.Event(), threading.Event(), engine._requests.build
    tokens: list[None] = []

    def slow(*asked: Any) -> Any:
        planning.set()
        assert released.wait(60)
        return plan(*asked)

    async def run() -> None:
        monkeypatch.setattr(engine._requests, "build", slow)
        stops = [lambda *_, **__: tokens.append(None) or False]
        task = asyncio.create_task(engine.agenerate(PROMPTS[0], max_new_tokens=500, stopping_criteria=stops, **GREEDY))
        assert await asyncio.to_thread(planning.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        released.set()
        await engine.agenerate(PROMPTS[1], max_new_tokens=20, **GREEDY)

    asyncio.run(run())
    assert len(tokens) <= 2


def test_requests_leave_no_threads(engine: Engine) -> None:
    """Many requests, in several event loops at once, leave the thread of one service; `close` ends it."""
    before = set(threading.enumerate())

    async def run() -> list[Any]:
        """None of many tasks is refused because others wait, as a service of its own would do."""
        return await asyncio.gather(*(engine.agenerate(PROMPTS[2], max_new_tokens=1, **GREEDY) for _ in range(150)))

    with ThreadPoolExecutor(4) as loops:
        answers = [answer.token_ids for each in loops.map(lambda _: asyncio.run(run()), range(4)) for answer in each]

    assert answers == [engine.generate(PROMPTS[2], max_new_tokens=1, **GREEDY).token_ids] * 600
    left = {each for each in set(threading.enumerate()) - before if "promptcache-fetch" not in each.name}
    assert [each.name for each in left] == ["promptcache-service"]
    engine.close()
    assert not any(each.is_alive() for each in left)


def test_a_dropped_engine_ends_its_service() -> None:
    """The thread of the service has no reference to the engine."""
    before = set(threading.enumerate())
    engine = engine_of()
    asyncio.run(engine.agenerate(PROMPTS[0], max_new_tokens=1, **GREEDY))
    (thread,) = (each for each in set(threading.enumerate()) - before if each.name == "promptcache-service")

    del engine
    deadline = time.monotonic() + 60
    while thread.is_alive() and time.monotonic() < deadline:
        gc.collect()  # the thread may still be inside the listener of the last request, which leads to the engine
        thread.join(0.1)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ('<prompt schema="travel"><rome/>Where to?</prompt>', {}, PromptError),
        (PROMPTS[0], {"max_new_tokens": 10**6}, ContextLengthExceeded),
        (PROMPTS[0], {"bad_words_ids": [[-1]]}, InvalidGeneration),  # transformers refuses it
    ],
)
def test_a_stream_is_checked_before_it_is_returned(
    prompt: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    """A web application can still answer with the status of the error. No event loop is needed for it."""
    with pytest.raises(error):
        ENGINE.astream(prompt, **options)
    assert asyncio.run(anext(ENGINE.astream(PROMPTS[0], **GREEDY)))


def test_an_error_of_an_answer_is_raised_where_it_is_awaited() -> None:
    for ask in (ENGINE.agenerate, partial(read, ENGINE)):
        with pytest.raises(ValueError, match="mine"):
            asyncio.run(ask(PROMPTS[0], stopping_criteria=[Broken()]))


def test_a_stream_that_is_read_later_has_not_waited_for_its_reader() -> None:
    """The request begins with the first piece: its times are within that of reading it."""

    async def read_later() -> tuple[float, Completion | None]:
        stream = ENGINE.astream(PROMPTS[0], **GREEDY)
        await asyncio.sleep(0.2)
        begun = time.perf_counter()
        async for _ in stream:
            pass
        return time.perf_counter() - begun, stream.completion

    took, completion = asyncio.run(read_later())
    assert completion is not None
    assert completion.timing.ttft_s - completion.timing.plan_s + completion.timing.decode_s <= took


def test_two_tasks_may_read_one_stream() -> None:
    async def run() -> None:
        stream = ENGINE.astream(PROMPTS[0], max_new_tokens=9, **GREEDY)

        async def pieces() -> str:
            return "".join([piece async for piece in stream])

        found = await asyncio.gather(pieces(), pieces())
        assert stream.completion is not None
        assert sorted("".join(found)) == sorted(stream.completion.text)

    asyncio.run(run())
