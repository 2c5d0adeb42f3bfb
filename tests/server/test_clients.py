"""What clients write: unset fields, numbers with a point, other names and other ends of paths."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from promptcache import Engine
from promptcache.runtime import KVSource
from promptcache.server import ServerSettings, create_app
from tests.server.conftest import CHAT, TRAVEL, Served, in_process, wait_until

UNSET: list[dict[str, Any]] = [
    {"top_k": -1},
    {"seed": -1},
    {"min_p": 0},
    {"max_tokens": 4.0},
    {"n": 1.0},
    {"reasoning_effort": None, "tools": None, "stop": None, "user": None},
    {"prompt_cache": {"use": ["miami"], "repair": None, "deterministic": None}},
    {"stream_options": {"include_usage": None}},
]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "top_k": ({"top_k": -2}, "top_k"),
    "max_tokens": ({"max_tokens": 4.5}, "max_tokens"),
    "min_p": ({"min_p": 1.1}, "min_p"),
    "reasoning": ({"reasoning": {"effort": "low"}}, "reasoning"),
    "no parts": ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    "details": (
        {"messages": [{"role": "assistant", "content": "a", "reasoning_details": [{"text": "b"}]}]},
        "messages[0].reasoning_details",
    ),
}


@pytest.mark.parametrize("fields", UNSET, ids=str)
def test_unset_fields_change_nothing(served: Served, fields: dict[str, Any]) -> None:
    """What clients write for a field that was not set is accepted."""
    with served.http() as client:
        response = client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 4, **fields})

    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED)
def test_other_fields_are_refused_by_name(served: Served, fields: dict[str, Any], param: str) -> None:
    """What would change the answer is not dropped."""
    with served.http() as client:
        response = client.post("/v1/chat/completions", json={**CHAT, **fields})

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_list_of_prompts_has_the_answers_of_each(served: Served) -> None:
    """Clients of completions write lists: the choices of the first prompt come first, whole and in a stream."""
    prompts = ["The best dish of Oslo is cod. The best", "The colour of the car is"]
    body = {"model": "demo", "max_tokens": 5, "temperature": 2, "seed": 3, "n": 2}
    with served.http() as client:

        def answer(**fields: Any) -> httpx.Response:
            return client.post("/v1/completions", json={**body, **fields})

        alone = [answer(prompt=each).json() for each in prompts]
        one, both = answer(prompt=prompts[:1]).json(), answer(prompt=prompts).json()
        lines = answer(prompt=prompts, stream=True, stream_options={"include_usage": True}).text.splitlines()

    chunks = [json.loads(each.removeprefix("data: ")) for each in lines if each.startswith("data: {")]
    texts = [""] * 4
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        texts[choice["index"]] += choice["text"]
    expected = [choice["text"] for made in alone for choice in made["choices"]]
    assert one["choices"] == alone[0]["choices"]
    assert [each["index"] for each in both["choices"]] == [0, 1, 2, 3]
    assert [each["text"] for each in both["choices"]] == texts == expected
    assert len(set(expected)) == 4
    for usage in (both["usage"], chunks[-1]["usage"]):
        for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert usage[count] == sum(made["usage"][count] for made in alone)


LISTS: list[tuple[Any, str]] = [
    ([], "prompt"),
    ([1, 2], "prompt[0]"),
    ([["a"]], "prompt[0]"),
    (["a"] * 129, "prompt"),
]


@pytest.mark.parametrize(("prompt", "param"), LISTS, ids=lambda each: str(each)[:20])
def test_other_lists_are_no_prompts(served: Served, prompt: Any, param: str) -> None:
    """Lists without a text, token IDs, and more answers than may wait are refused."""
    with served.http() as client:
        response = client.post("/v1/completions", json={"model": "demo", "prompt": prompt, "n": 2})

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_paths(served: Served) -> None:
    """A slash behind the models changes nothing, and a path that is not there is named, with where the others are."""
    with served.http() as client:
        assert client.get("/v1/models/").json() == client.get("/v1/models").json()
        error = client.post("/v1/chat/completion", json=CHAT).json()["error"]

    assert error["code"] == "not_found"
    assert error["message"].startswith("POST '/v1/chat/completion': Not Found; GET / lists the endpoints")


@pytest.mark.parametrize(("body", "code"), [({"model": "x"}, "model_not_found"), ({"temperature": 9}, "invalid_value")])
def test_refused_requests_have_their_reason_in_the_log(
    served: Served, caplog: pytest.LogCaptureFixture, body: dict[str, Any], code: str
) -> None:
    """The line has the code of the error, and the caller, but not the key."""
    with caplog.at_level(logging.INFO, "promptcache.server"), served.http() as client:
        client.post("/v1/chat/completions", json={**CHAT, **body}, headers={"x-request-id": f"refused-{code}"})
        wait_until(lambda: f"refused-{code}" in caplog.text)

    (line,) = [json.loads(each.message) for each in caplog.records if f"refused-{code}" in each.message]
    assert line["error"] == code
    assert len(line["caller"]) == 12
    assert line["time"].endswith("+00:00")


def test_modules_that_a_request_encodes_are_not_cached() -> None:
    """They count once they are stored."""
    engine = Engine.from_pretrained("demo")

    async def ask(client: httpx.AsyncClient) -> list[dict[str, Any]]:
        engine.add_schema(TRAVEL)
        return [(await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})).json() for _ in range(2)]

    answers = in_process(create_app(engine, ServerSettings(model="demo")), ask)
    usages = [each["usage"] for each in answers]
    cached = [each["prompt_tokens_details"]["cached_tokens"] for each in usages]
    missed = [
        sum(each["num_tokens"] for each in answer["prompt_cache"]["modules"] if each["source"] == KVSource.MISS)
        for answer in answers
    ]

    assert usages[0]["prompt_tokens"] == usages[1]["prompt_tokens"]
    assert (missed[0] > 0, missed[1]) == (True, 0)
    assert cached[0] == 0
    assert cached[1] >= missed[0]
