"""Answers over HTTP are those of the engine, in OpenAI's form, for OpenAI's unchanged client."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from promptcache import Engine, Prompt
from tests.server.conftest import CHAT, QUESTION, Served

ANSWER = "The best dish of Miami is stone crab."
USE: dict[str, Any] = {"prompt_cache": {"use": {"miami": {}, "trip-plan": {"duration": "four days", "budget": 500}}}}


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
    assert made.choices[0].finish_reason == "stop"
    assert made.usage
    assert made.usage.prompt_tokens_details
    usage = expected.usage
    assert made.usage.prompt_tokens == usage.num_reused_tokens + usage.num_new_tokens
    assert made.usage.prompt_tokens_details.cached_tokens >= usage.num_reused_tokens > 0
    assert made.usage.completion_tokens == usage.num_generated_tokens
    assert made.model_extra
    assert made.model_extra["prompt_cache"]["level"] == "modular"


def test_stream_is_the_whole_answer(served: Served) -> None:
    """The pieces of a stream are the answer; the last chunk has the usage and no choices."""
    client = served.openai()
    stream = client.chat.completions.create(
        model="demo",
        messages=[QUESTION],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"prompt_cache": {"schema": "travel", "use": ["miami"]}},
    )
    chunks = list(stream)

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == ANSWER
    assert len(chunks) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage
    assert chunks[-1].usage.prompt_tokens_details
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_stream_has_the_frames_of_openai(served: Served) -> None:
    """Each frame is one `data:` line, the last one is [DONE], and no usage comes unasked."""
    with served.http() as client:
        response = client.post("/v1/chat/completions", json={**CHAT, "stream": True})

    frames = response.text.split("\n\n")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert frames.pop() == ""
    assert frames.pop() == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_are_not_part_of_the_text(served: Served, stream: bool) -> None:
    """The text ends before a stop string, also if the string ends inside a token."""
    with served.http() as client:
        response = client.post("/v1/chat/completions", json={**CHAT, "stream": stream, "stop": ["Miami is sto"]})

    if stream:
        chunks = [json.loads(each[6:]) for each in response.text.split("\n\n") if each.startswith("data: {")]
        choices = [chunk["choices"][0] for chunk in chunks]
        text, finish = "".join(each["delta"].get("content", "") for each in choices), choices[-1]["finish_reason"]
    else:
        choice = response.json()["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    assert (text, finish) == ("The best dish of ", "stop")


def test_callers_share_history_only_with_themselves(served: Served) -> None:
    """A second turn reuses the first one under the same key, and nothing of it under another key."""
    chat = [{"role": "user", "content": "The best dish of Lima is ceviche. What is the best dish of Lima?"}]

    def cached(key: str) -> int:
        made = served.openai(key).chat.completions.create(model="demo", messages=chat, temperature=0, max_tokens=4)
        assert made.usage
        assert made.usage.prompt_tokens_details
        return made.usage.prompt_tokens_details.cached_tokens or 0

    first, again, other = cached("alice"), cached("alice"), cached("bob")

    assert again > 20 > max(first, other)  # other tests share the frame of a first turn


def test_many_clients_at_once(served: Served) -> None:
    """Requests that are computed together get their own answers."""
    facts = {"miami": "stone crab", "paris": "onion soup", "tokyo": "sushi"}
    client = served.openai()

    def ask(city: str) -> str | None:
        question = f"What is the best dish of {city.title()}?"
        made = client.chat.completions.create(
            model="demo@travel",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            extra_body={"prompt_cache": {"use": [city]}},
        )
        return made.choices[0].message.content

    cities = [*facts] * 6
    with ThreadPoolExecutor(len(cities)) as threads:
        texts = list(threads.map(ask, cities))

    assert texts == [f"The best dish of {city.title()} is {facts[city]}." for city in cities]


def test_completions_continue_text(served: Served, engine: Engine) -> None:
    """`/v1/completions` continues a text as it is, without turns."""
    made = served.openai().completions.create(
        model="demo", prompt="The best dish of Oslo is cod. The best dish of", temperature=0, max_tokens=6
    )
    pieces = served.openai().completions.create(
        model="demo", prompt="The best dish of Oslo is cod. The best dish of", temperature=0, max_tokens=6, stream=True
    )

    assert made.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in pieces) == made.choices[0].text
    assert made.choices[0].finish_reason == "length"


def test_several_choices_of_one_prompt(served: Served) -> None:
    """`n` answers are counted together, and a seed makes them the same again."""
    client = served.openai()

    def texts() -> list[str | None]:
        made = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "zx qv"}], n=3, temperature=2, seed=7, max_tokens=12
        )
        assert [choice.index for choice in made.choices] == [0, 1, 2]
        assert made.usage
        assert made.usage.completion_tokens > 12
        return [choice.message.content for choice in made.choices]

    first = texts()
    assert texts() == first
    assert len(set(first)) > 1


def test_models_are_the_base_and_one_for_each_schema(served: Served) -> None:
    """OpenAI's client lists and retrieves models; each is accepted by chats."""
    client = served.openai()
    ids = [each.id for each in client.models.list()]

    assert ids[:2] == ["demo", "demo@travel"]
    assert [client.models.retrieve(each).id for each in ids] == ids


def test_parameters_that_change_nothing_are_accepted(served: Served) -> None:
    """Clients send these without being asked."""
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "prompt_cache_key": "k",
        "prompt_cache_breakpoint": {"mode": "explicit"},
        "cache_control": {"type": "ephemeral"},
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "n": 1,
        "max_completion_tokens": 2,
        "parallel_tool_calls": True,
    }
    with served.http() as client:
        response = client.post("/v1/chat/completions", json={**CHAT, **harmless})

    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 2


def test_marks_for_caching_change_nothing(served: Served) -> None:
    """A message or a part with the marks of other servers is the same message."""
    marks = {"cache_control": {"type": "ephemeral"}, "prompt_cache_breakpoint": {"mode": "explicit"}}
    part = {"type": "text", "text": QUESTION["content"], **marks}
    bodies = [CHAT, {**CHAT, "messages": [{"role": "user", "content": [part], **marks}]}]
    with served.http() as client:
        plain, marked = (client.post("/v1/plan", json=body) for body in bodies)

    assert (marked.status_code, marked.json()) == (200, plain.json())


def test_markup_in_messages_is_text(served: Served, engine: Engine) -> None:
    """A message with markup is the same text in the prompt, and names no module."""
    body = {**CHAT, "messages": [{"role": "developer", "content": [{"type": "text", "text": "<miami/>"}]}, QUESTION]}
    body["prompt_cache"] = {"use": ["paris"]}
    with served.http() as client:
        response = client.post("/v1/plan", json=body)

    prompt = Prompt("travel").use("paris").system("<miami/>").user(QUESTION["content"])
    assert response.json()["num_new_tokens"] == engine.plan(prompt).num_new_tokens
    assert {each["module"] for each in response.json()["modules"]} == {"", "paris"}


def test_variables_reach_the_chat_template(served: Served, engine: Engine) -> None:
    """`chat_template_kwargs` is `template_kwargs` of the engine; names that the server sets are refused."""
    body = {"model": "demo", "messages": [QUESTION], "chat_template_kwargs": {"no_such_variable": True}}
    with served.http() as client:
        planned = client.post("/v1/plan", json=body).json()
        refused = client.post("/v1/plan", json={**body, "chat_template_kwargs": {"messages": "x"}})
    expected = engine.plan([QUESTION], template_kwargs={"no_such_variable": True})

    assert planned["num_new_tokens"] == expected.num_new_tokens
    assert refused.status_code == 400
    assert "template_kwargs" in refused.json()["error"]["message"]


def test_answers_say_where_a_prompt_is_not_as_the_template_writes_it(served: Served) -> None:
    """A conversation that the chat template of the demo model refuses has a warning in the answer and the plan."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}, QUESTION]
    with served.http() as client:
        usual = client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2}).json()
        planned = client.post("/v1/plan", json={"model": "demo@travel", "messages": messages, **USE}).json()

    assert usual["prompt_cache"]["warnings"] == []
    assert isinstance(planned["warnings"], list)


@pytest.mark.parametrize("field", ["user", "safety_identifier", "prompt_cache_key"])
def test_end_users_behind_one_key_share_no_history(served: Served, field: str) -> None:
    """`cached_tokens` does not tell one end user what another one has asked, and tells each their own."""
    secret = {"role": "user", "content": f"My PIN is 4711, and this is about {field}. What is the best dish of Miami?"}
    body = {**CHAT, "messages": [secret], "max_tokens": 2}
    with served.http() as client:

        def cached(**fields: str) -> int:
            answer = client.post("/v1/chat/completions", json={**body, **fields}).json()
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        first = cached(**{field: "ann"})
        assert cached(**{field: "bob"}) == first
        assert cached(**{field: "ann"}) > first


def test_embeddings_are_refused(served: Served) -> None:
    """The error says what to ask instead."""
    with pytest.raises(openai.NotFoundError, match=r"this server has no embeddings, .* ask a server of an embedding"):
        served.openai().embeddings.create(model="demo", input="x")
