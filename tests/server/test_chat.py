"""Answers over HTTP are those of the engine, in OpenAI's form, for OpenAI's unchanged client, with their reasoning apart."""

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from promptcache import Engine, Prompt
from promptcache.decode import KVSource
from promptcache.server import create_app
from tests.engine.test_reasoning import KEEPS, SAID, engine_of, saying
from tests.server.conftest import (
    CHAT,
    CHATS,
    QUESTION,
    ScriptedService,
    Served,
    answers,
    choices,
    engine_with,
    events,
    scripted,
)

Ask = Callable[..., httpx.Response]
ANSWER = "The best dish of Miami is stone crab."
USE: dict[str, Any] = {"prompt_cache": {"use": {"miami": {}, "trip-plan": {"duration": "four days", "budget": 500}}}}
MARKS = {"cache_control": {"type": "ephemeral"}, "prompt_cache_breakpoint": {"mode": "explicit"}}


def test_chat_is_the_answer_of_the_engine(served: Served, engine: Engine) -> None:
    """A chat over modules has the text and the counts of `Engine.generate`; tokens encoded for the request are not cached."""
    served.state.engine.warm(pairs=True)
    made = served.openai().chat.completions.create(
        model="demo@travel", messages=[QUESTION], temperature=0, extra_body=USE
    )
    prompt = Prompt("travel").use("miami").use("trip-plan", duration="four days", budget=500).user(QUESTION["content"])
    engine.clear_history()
    expected = engine.generate(prompt, do_sample=False)

    assert made.choices[0].message.content == expected.text == ANSWER
    assert (made.choices[0].finish_reason, made.choices[0].logprobs) == ("stop", None)
    usage = expected.usage
    assert made.usage.prompt_tokens == usage.num_reused_tokens + usage.num_new_tokens
    assert made.usage.prompt_tokens_details.cached_tokens >= usage.num_reused_tokens > 0
    assert made.usage.completion_tokens == usage.num_generated_tokens
    assert [made.model_extra["prompt_cache"][name] for name in ("level", "warnings")] == ["modular", []]


def test_stream_is_the_whole_answer(served: Served) -> None:
    """The pieces of a stream are the answer; the last chunk has the usage and no choices, if it was asked for."""
    body = {**CHAT, "stream": True}
    response = served.post(CHATS, body)
    chunks = list(
        served.openai().chat.completions.create(
            model="demo",
            messages=[QUESTION],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"prompt_cache": {"schema": "travel", "use": ["miami"]}},
        )
    )

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == ANSWER
    assert len(chunks) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
    assert response.headers["content-type"].startswith("text/event-stream")
    assert {chunk["object"] for chunk in events(response.text)} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in events(response.text)}) == 1
    assert not any("usage" in chunk for chunk in events(response.text))


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_are_not_part_of_the_text(served: Served, stream: bool) -> None:
    """The text ends before a stop string, also if the string ends inside a token."""
    answer = served.post(CHATS, {**CHAT, "stream": stream, "stop": ["Miami is sto"]})

    assert choices(answer) == [("The best dish of ", "stop")]


def test_a_list_of_prompts_has_the_answers_of_each(served: Served) -> None:
    """Clients write lists: the choices of the first prompt come first, whole and in a stream; a seed repeats them."""
    prompts = ["The best dish of Oslo is cod. The best", "The colour of the car is"]
    body = {"model": "demo", "max_tokens": 5, "temperature": 2, "seed": 3, "n": 2}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    first, second, one, both, streamed = (
        served.post("/v1/completions", {**body, **each})
        for each in (*({"prompt": each} for each in (*prompts, prompts[:1], prompts)), {"prompt": prompts, **stream})
    )

    expected = [*choices(first, 2), *choices(second, 2)]
    assert choices(one, 2) == expected[:2]
    assert choices(both, 4) == choices(streamed, 4) == expected
    assert len({*expected}) == 4
    for usage in (both.json()["usage"], events(streamed.text)[-1]["usage"]):
        for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert usage[count] == sum(made.json()["usage"][count] for made in (first, second))


@pytest.mark.parametrize("field", ["key", "user", "safety_identifier", "prompt_cache_key"])
def test_callers_share_history_only_with_themselves(served: Served, field: str) -> None:
    """`cached_tokens` tells no key, and no end user behind one, what another one has asked, also under one name."""
    secret = {"role": "user", "content": f"My PIN is 4711, and this is about {field}. What is the best dish of Miami?"}

    def cached(who: str, key: str = "alice") -> int:
        body = {**CHAT, "messages": [secret], "max_tokens": 2}
        answer = served.post(CHATS, body, who) if field == "key" else served.post(CHATS, {**body, field: who}, key)
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    first, others = cached("alice"), [cached("bob")]
    others += [cached("alice", "bob")] if field != "key" else []
    again = cached("alice")

    assert all(again - first > 15 > 5 > abs(other - first) for other in others)  # other tests share the frame of a turn


def test_models_are_the_base_and_one_for_each_schema(served: Served) -> None:
    """OpenAI's client lists and retrieves models; each is accepted by chats."""
    client = served.openai()
    ids = [each.id for each in client.models.list()]

    assert ids[:2] == ["demo", "demo@travel"]
    assert [client.models.retrieve(each).id for each in ids] == ids


HARMLESS: dict[str, dict[str, Any]] = {
    "known": {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "prompt_cache_key": "k",
        **MARKS,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "n": 1,
        "max_completion_tokens": 2,
        "parallel_tool_calls": True,
    },
    "unset": {"stream_options": {"include_usage": None}},
    "null": {"reasoning_effort": None, "tools": None, "stop": None, "user": None},
    "null in modules": {"prompt_cache": {"use": ["miami"], "repair": None, "deterministic": None}},
    "points": {"max_tokens": 2.0, "n": 1.0},
}


@pytest.mark.parametrize("fields", HARMLESS.values(), ids=HARMLESS)
def test_fields_that_change_nothing_are_accepted(served: Served, fields: dict[str, Any]) -> None:
    """Clients send these without being asked, and write numbers with a point, or values for what was not set."""
    response = served.post(CHATS, {**CHAT, "max_tokens": 2, **fields})

    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 2


def test_marks_for_caching_change_nothing(served: Served) -> None:
    """A message or a part with the marks of other servers is the same message."""
    part = {"type": "text", "text": QUESTION["content"], **MARKS}
    bodies = [CHAT, {**CHAT, "messages": [{"role": "user", "content": [part], **MARKS}]}]
    plain, marked = (served.post("/v1/plan", body) for body in bodies)

    assert (marked.status_code, marked.json()) == (200, plain.json())


def test_markup_in_messages_is_text(served: Served, engine: Engine) -> None:
    """A message with markup is the same text in the prompt, and names no module."""
    messages = [{"role": "developer", "content": [{"type": "text", "text": "<miami/>"}]}, QUESTION]
    planned = served.post("/v1/plan", {**CHAT, "messages": messages, "prompt_cache": {"use": ["paris"]}}).json()

    prompt = Prompt("travel").use("paris").system("<miami/>").user(QUESTION["content"])
    assert planned["num_new_tokens"] == engine.plan(prompt).num_new_tokens
    assert {each["module"] for each in planned["modules"]} == {"", "paris"}


def test_variables_reach_the_chat_template(served: Served, engine: Engine) -> None:
    """`chat_template_kwargs` is `template_kwargs` of the engine; names that the server sets are refused."""
    body = {"model": "demo", "messages": [QUESTION], "chat_template_kwargs": {"no_such_variable": True}}
    planned = served.post("/v1/plan", body).json()
    refused = served.post("/v1/plan", {**body, "chat_template_kwargs": {"messages": "x"}})

    expected = engine.plan([QUESTION], template_kwargs={"no_such_variable": True})
    assert planned["num_new_tokens"] == expected.num_new_tokens
    assert refused.status_code == 400
    assert "template_kwargs" in refused.json()["error"]["message"]


def test_modules_that_a_request_encodes_are_not_cached() -> None:
    """They count once they are stored."""
    engine = engine_with()
    engine.warm = lambda *_, **__: []
    first, second = (each.json() for each in answers(create_app(engine), *[{**CHAT, "max_tokens": 1}] * 2))
    missed = [
        sum(each["num_tokens"] for each in answer["prompt_cache"]["modules"] if each["source"] == KVSource.MISS)
        for answer in (first, second)
    ]

    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert (missed[0] > 0, missed[1]) == (True, 0)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= missed[0]


@pytest.fixture(scope="module", params=[False, True], ids=["written by the model", "opened by the prompt"])
def reasoner(request: pytest.FixtureRequest) -> tuple[Engine, Sequence[object]]:
    """An engine whose model reasons, and what its service says."""
    engine, _ = engine_of(KEEPS, is_open=request.param)
    found = engine.generate([QUESTION], **saying(engine, SAID.removeprefix("<think>\n") if request.param else SAID))
    return engine, (*found.token_ids, found)


@pytest.fixture
def ask(reasoner: tuple[Engine, Sequence[object]], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that asks for a chat."""

    def asked(**body: Any) -> httpx.Response:
        app = scripted(reasoner[0], ScriptedService(*reasoner[1]), monkeypatch)
        return answers(app, {"model": "demo", "messages": [QUESTION], **body})[0]

    return asked


def test_an_answer_has_its_reasoning_apart(reasoner: tuple[Engine, Sequence[object]], ask: Ask) -> None:
    """The content is the answer alone. A client that sends it back gives the template its reasoning."""
    message = ask().json()["choices"][0]["message"]
    chat = [QUESTION, message, {"role": "user", "content": "Where?"}]

    assert (message["content"], message["reasoning_content"]) == ("Ceviche.", "Many.")
    assert ask(messages=chat).status_code == 200
    used_ids = reasoner[0].plan(chat).tokens.used_ids
    assert "<think>\nMany.\n</think>\n\nCeviche." in reasoner[0].tokenizer.detokenize(used_ids)


def test_a_stream_has_its_reasoning_first(ask: Ask) -> None:
    """The pieces add up to the message."""
    deltas = [choice["delta"] for event in events(ask(stream=True).text) for choice in event["choices"]]
    said = {
        name: [(place, each[name]) for place, each in enumerate(deltas) if each.get(name)]
        for name in ("reasoning_content", "content")
    }

    assert ["".join(text for _, text in each) for each in said.values()] == ["Many.", "Ceviche."]
    assert said["reasoning_content"][-1][0] < said["content"][0][0]


def test_stop_texts_count_in_reasoning_too(ask: Ask) -> None:
    """An answer that stops in its reasoning has no content."""
    (choice,) = ask(stop=["ny"]).json()["choices"]

    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("", "Ma")
    assert choice["finish_reason"] == "stop"
