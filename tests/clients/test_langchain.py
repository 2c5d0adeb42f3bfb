"""LangChain as a client of the server, as it is. The tests of the server use the package `openai`."""

import asyncio
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any, Literal

import pytest
from langchain_openai import ChatOpenAI, OpenAI
from openai import BadRequestError
from pydantic import BaseModel, ConfigDict

from promptcache.server import create_app
from tests.engine.calling import HERMES, engine_of
from tests.server.conftest import KEYS, Served, engine_with, running

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the client

QUESTION, TEXT = "What is the best dish of Miami?", "The best dish of Miami is"


class Dish(BaseModel):
    """A structured answer."""

    model_config = ConfigDict(extra="forbid")

    dish: Literal["stone crab", "onion soup"]


def look_up(place: str) -> str:
    """Look up a place."""
    return place


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server with the demo model."""
    yield from running(create_app(engine_with(), keys=KEYS))


@pytest.fixture(scope="module")
def with_tools() -> Iterator[Served]:
    """A server with the demo model, and a chat template that writes tools."""
    yield from running(create_app(engine_of(HERMES)[0], keys=KEYS))


def chat(served: Served, **options: Any) -> ChatOpenAI:
    """Return a chat model over a server."""
    settings: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 128, "max_retries": 0, **options}
    return ChatOpenAI(base_url=f"{served.url}/v1", api_key="alice", **settings)


def pieces(found: Iterable[str]) -> str:
    """Return the text of a stream of more than one piece."""
    texts = [each for each in found if each]
    assert len(texts) > 1
    return "".join(texts)


def test_chats(served: Served) -> None:
    """Calls, streams, batches and tasks of one question have one answer, with its usage."""

    async def later(found: AsyncIterable[Any]) -> str:
        return pieces([each.content async for each in found])

    model = chat(served)
    made = model.invoke(QUESTION)

    assert (made.usage_metadata["output_tokens"] > 0, made.response_metadata["finish_reason"]) == (True, "stop")
    assert pieces(each.content for each in model.stream(QUESTION)) == made.content
    assert [each.content for each in model.batch([QUESTION] * 2)] == [made.content] * 2
    assert asyncio.run(later(model.astream(QUESTION))) == made.content
    assert chat(served, use_responses_api=True).invoke(QUESTION).text == made.content


def test_forms_of_answers(served: Served, with_tools: Served) -> None:
    """Structured answers and calls of tools arrive as the client's own objects."""
    dish = chat(served).with_structured_output(Dish).invoke(QUESTION)
    called = chat(with_tools).bind_tools([look_up], tool_choice="required").invoke(QUESTION)

    assert isinstance(dish, Dish)
    assert called.tool_calls[0]["name"] == "look_up"


def test_texts(served: Served) -> None:
    """Continuations of one text and of several, and their streams, agree."""
    settings: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 12, "max_retries": 0}
    model = OpenAI(base_url=f"{served.url}/v1", api_key="alice", **settings)  # type: ignore[arg-type]
    made = model.invoke(TEXT)

    assert made
    assert pieces(model.stream(TEXT)) == made
    assert model.batch([TEXT, TEXT]) == [made, made]


def test_a_refusal_says_what_is_not_supported(served: Served) -> None:
    """The error of the client has the message of the server."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    with pytest.raises(BadRequestError, match=r"content\[0\].*only parts of type 'text' are"):
        chat(served).invoke([{"role": "user", "content": [image]}])
