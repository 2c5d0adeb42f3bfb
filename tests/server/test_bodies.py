"""Bodies are read in one way at all endpoints: content type, JSON, text and the places of faults."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from promptcache.server.bodies import checked_body
from promptcache.server.errors import ApiError
from promptcache.server.models import ChatBody
from tests.server.conftest import CHAT, Served

JSON = {"content-type": "application/json"}
ENDPOINTS = ["/v1/chat/completions", "/v1/completions", "/v1/prompts", "/v1/plan", "/v1/check", "/v1/layout.svg"]
BROKEN = {
    "empty": (b"", "Expecting value: line 1 column 1"),
    "cut": (b'{"a":', "Expecting value: line 1 column 6"),
    "deep": (b"[" * 100_000, "recursion"),
    "no UTF-8": (b'{"model": "\xff"}', "can't decode byte 0xff"),
    "long integer": (b'{"n": %s}' % (b"1" * 5000), "4300 digits"),
    "no number": (b'{"n": NaN}', "NaN is no number in JSON"),
    "large number": (b'{"n": 1e400}', "the number '1e400' is too large"),
    "list": (b"[]", "not a JSON object"),
}


@pytest.mark.parametrize(("body", "words"), BROKEN.values(), ids=BROKEN)
def test_broken_json(served: Served, body: bytes, words: str) -> None:
    """A body that is no JSON object is `invalid_json`, and the message says where it ends to be one."""
    with served.http() as client:
        response = client.post(ENDPOINTS[0], content=body, headers=JSON)

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_json", None)
    assert error["message"].startswith("the body is not")
    assert words in error["message"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_bodies_that_no_endpoint_reads(served: Served, endpoint: str) -> None:
    """A body without a content type, or with one that is not read, is 415, and broken JSON is 400."""
    with served.http() as client:
        broken = client.post(endpoint, content=b"[]", headers=JSON)
        kinds = ({}, *({"content-type": each} for each in ("text/plain", "application/vnd.api+json")))
        other = [client.post(endpoint, content=json.dumps(CHAT), headers=each) for each in kinds]

    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
    assert {(each.status_code, each.json()["error"]["code"]) for each in other} == {(415, "unsupported_media_type")}


def test_a_chat_is_no_xml(served: Served) -> None:
    """XML stands for a document, so a chat in XML is 415; parameters of the content type change nothing."""
    with served.http() as client:
        kinds = ("application/xml", "Application/JSON; charset=utf-8")
        found = [client.post(ENDPOINTS[0], content=json.dumps(CHAT), headers={"content-type": each}) for each in kinds]

    assert [each.status_code for each in found] == [415, 200]


LONE = "\ud800"
DURATION = {"miami": {}, "trip-plan": {"duration": LONE}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": LONE}, "model"),
        ({"messages": [{"role": "user", "content": LONE}]}, "messages[0].content"),
        ({"prompt_cache": {"use": DURATION}}, "prompt_cache.use.trip-plan.duration"),
        ({"prompt_cache": {"use": ["miami", LONE]}}, "prompt_cache.use[1]"),
        ({"prompt_cache": {"use": ["miami"], "repair": LONE}}, "prompt_cache.repair"),
        ({"stop": ["a", LONE]}, "stop[1]"),
        ({"metadata": {LONE: "x"}}, "metadata"),
        ({LONE: 1}, None),
    ],
)
def test_text_that_utf8_cannot_represent(served: Served, changes: dict[str, Any], param: str | None) -> None:
    """A lone surrogate is refused with its place, in whatever text or name of the body it is."""
    with served.http() as client:
        response = client.post(ENDPOINTS[0], content=json.dumps({**CHAT, **changes}), headers=JSON)

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert error["message"] == f"{param or 'the body'} is not allowed: text without lone surrogates is expected"


def test_documents_without_text_utf8_can_represent(served: Served) -> None:
    """Lone surrogates in documents and texts of other endpoints are refused, too."""
    bodies = {"/v1/completions": "prompt", "/v1/prompts": "prompt", "/v1/check": "document", "/v1/layout.svg": "schema"}
    with served.http() as client:
        found = [
            client.post(endpoint, content=json.dumps({"model": "demo", "document": "x", name: LONE}), headers=JSON)
            for endpoint, name in bodies.items()
        ]

    assert [(each.status_code, each.json()["error"]["param"]) for each in found] == [
        (400, name) for name in bodies.values()
    ]


def test_errors_answer_with_any_text() -> None:
    """An error whose message has a lone surrogate is still an answer."""
    body = bytes(ApiError(404, "not_found", f"there is no {LONE}").response().body)

    assert json.loads(body)["error"]["message"] == f"there is no {LONE}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": ["a"] * 17}, "stop is not allowed: List should have at most 16 items after validation, not 17"),
        ({"stop": ""}, "stop is not allowed: String should have at least 1 character"),
        (
            {"prompt_cache": {"use": "miami"}},
            "prompt_cache.use is not allowed: Input should be a valid dictionary or a valid list",
        ),
        (
            {"temperature": 3, "stop": "", "max_token": 1},
            "temperature is not allowed: Input should be less than or equal to 2 (and 2 more)",
        ),
        ({"messages": None}, "messages is not allowed: Field required"),
    ],
)
def test_messages_of_wrong_values(served: Served, changes: dict[str, Any], message: str) -> None:
    """A message has the place in the body, the limit, and the number of other fields with faults."""
    with served.http() as client:
        response = client.post("/v1/chat/completions", json={**CHAT, **changes})

    assert response.json()["error"]["message"] == message


def test_top_logprobs_need_logprobs(served: Served) -> None:
    """The number of most probable tokens is refused without log-probabilities, in chats and in prompt documents."""
    prompt = '<prompt schema="travel"><miami/>Hi</prompt>'
    with served.http() as client:
        found = [
            client.post("/v1/chat/completions", json={**CHAT, "top_logprobs": 3}),
            client.post("/v1/prompts", json={"prompt": prompt, "top_logprobs": 3, "logprobs": False}),
        ]

    assert [each.status_code for each in found] == [400, 400]
    assert {each.json()["error"]["param"] for each in found} == {"top_logprobs"}


def test_missing_fields(served: Served) -> None:
    """A field that is missing has its place, too."""
    with served.http() as client:
        found = [client.post(endpoint, json={"model": "demo"}).json()["error"] for endpoint in ENDPOINTS]

    assert [each["param"] for each in found] == ["messages", "prompt", "prompt", "prompt", "document", "document"]


def test_repair_of_other_endpoints(served: Served) -> None:
    """A repair that there is not is refused at its place."""
    body = {"model": "demo", "prompt": "x", "repair": "first-x"}
    with served.http() as client:
        found = [
            client.post(endpoint, json=body).json()["error"]
            for endpoint in ("/v1/completions", "/v1/prompts", "/v1/plan")
        ]

    assert [each["param"] for each in found] == ["repair"] * 3


LARGE = {
    "list": ("use", [1] * 10_001, "prompt_cache.use", "it has 10,001 items, and at most 10,000 are allowed"),
    "faults": ("use", [1] * 10_000, "prompt_cache.use[0]", "Input should be a valid string"),
    "object": ("fill", {str(each): 1 for each in range(10_001)}, "prompt_cache.fill", "it has 10,001 items"),
    "values": ("fill", {f"x{each}": [] for each in range(10_000)}, "prompt_cache.fill.x0", "a valid string or"),
    "deep": ("fill", {"a": [[] for _ in range(2)]}, "prompt_cache.fill.a", "a valid string or"),
}


@pytest.mark.parametrize(("field", "value", "place", "words"), LARGE.values(), ids=LARGE)
def test_large_bodies_have_one_fault(served: Served, field: str, value: Any, place: str, words: str) -> None:
    """Too many items are refused before their kinds are checked, and the check of kinds ends at the first fault."""
    with served.http() as client:
        error = client.post(ENDPOINTS[0], json={**CHAT, "prompt_cache": {field: value}}).json()["error"]

    assert (error["code"], error["param"]) == ("invalid_value", place)
    assert words in error["message"]


def test_lists_are_at_most_64_deep(served: Served) -> None:
    """The place is that of the list that is too deep."""
    deep: Any = []
    for _ in range(70):
        deep = [deep]
    with served.http() as client:
        error = client.post(ENDPOINTS[0], json={**CHAT, "metadata": deep}).json()["error"]

    assert error["param"] == "metadata" + 63 * "[0]"
    assert error["message"].endswith("lists and objects may be 64 deep")


@pytest.mark.parametrize("num", [9_000, 90_000])
def test_faults_take_time_in_proportion_to_the_body_at_most(num: int) -> None:
    """A body full of faults is checked until the first one."""
    values = {"use": {f"m{module}": {str(each): [] for each in range(9_000)} for module in range(num // 9_000)}}
    started = time.thread_time()
    with pytest.raises(ApiError):
        checked_body(ChatBody, {**CHAT, "prompt_cache": values})

    assert time.thread_time() - started < 0.5


def test_template_variables_are_counted(served: Served) -> None:
    """There may be 32 of them."""
    with served.http() as client:
        body = {**CHAT, "chat_template_kwargs": {f"x{each}": 1 for each in range(33)}}
        assert client.post(ENDPOINTS[0], json=body).json()["error"]["param"] == "chat_template_kwargs"
