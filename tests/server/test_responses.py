"""`/v1/responses`, for OpenAI's unchanged client."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import openai
import pytest

from promptcache.server.answer import AnswerDelta, AnswerItem, AnswerRow
from promptcache.server.bodies import ModuleBody
from promptcache.server.chat import chat_prompt
from promptcache.server.response_form import ResponseForm
from promptcache.server.state import ResponseMemory
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.engine.calling import TOOLS
from tests.engine.test_reasoning import KEEPS, SAID, saying
from tests.engine.test_reasoning import engine_of as reasoning_engine
from tests.server.conftest import CHATS, QUESTION, ScriptedService, Served, in_process, scripted
from tests.server.test_forms import SCHEMA, Trip

ASKED: dict[str, Any] = {"model": "demo", "input": QUESTION["content"], "max_output_tokens": 12, "temperature": 0}
FUNCTIONS = [{"type": "function", **each["function"]} for each in TOOLS]
CALLED: dict[str, Any] = {
    "model": "demo",
    "input": "How warm is it in Oslo?",
    "tools": FUNCTIONS,
    "max_output_tokens": 100,
    "temperature": 0,
    "parallel_tool_calls": False,
}


def chat(served: Served, messages: Sequence[Any], **options: Any) -> Any:
    """Return the answer of `/v1/chat/completions`."""
    body = {"model": "demo", "max_tokens": 12, "temperature": 0, "messages": messages, **options}
    return served.post(CHATS, body).json()


def plain(response: Any) -> dict[str, Any]:
    """Return a response without what differs between two of them."""
    data = response.to_dict()
    output = [{name: each for name, each in item.items() if name not in ("id", "call_id")} for item in data["output"]]
    return {**data, "id": "", "created_at": 0, "prompt_cache": {}, "usage": {}, "output": output}


def test_a_response_is_the_answer_of_a_chat(own_server: Served) -> None:
    """It has the text and the tokens of the same chat."""
    use = {"prompt_cache": {"use": ["miami"]}}
    expected = chat(own_server, [{"role": "system", "content": "Be brief."}, QUESTION], model="demo@travel", **use)
    made = own_server.openai().responses.create(
        **{**ASKED, "model": "demo@travel"}, instructions="Be brief.", metadata={"a": "b"}, extra_body=use
    )

    assert made.output_text == expected["choices"][0]["message"]["content"] != ""
    assert (made.status, made.model, made.metadata, made.object) == ("completed", "demo@travel", {"a": "b"}, "response")
    assert made.usage.input_tokens == expected["usage"]["prompt_tokens"]
    assert made.usage.input_tokens_details.cached_tokens > 0
    assert made.usage.output_tokens == expected["usage"]["completion_tokens"]
    assert made.model_extra["prompt_cache"]["schema"] == "travel"


def test_the_limit_of_tokens_makes_a_response_incomplete(own_server: Served) -> None:
    """Whole and as a stream."""
    client, asked = own_server.openai(), {**ASKED, "max_output_tokens": 2}
    made = client.responses.create(**asked)
    *_, last = client.responses.create(**asked, stream=True)

    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert made.output[0].status == "incomplete"
    assert last.type == "response.incomplete"
    assert plain(last.response) == plain(made)


@pytest.mark.parametrize("is_call", [False, True])
def test_a_stream_has_the_events_of_openai(own_server: Served, tools: Served, is_call: bool) -> None:
    """They are numbered. Text comes in pieces, arguments come whole, and the last event has the whole response."""
    client = (tools if is_call else own_server).openai()
    asked = {**CALLED, "tool_choice": {"type": "function", "name": "weather"}} if is_call else ASKED
    kind = "function_call_arguments" if is_call else "output_text"
    around = [] if is_call else ["response.content_part.added", "response.content_part.done"]
    expected = client.responses.create(**asked)

    events = list(client.responses.create(**asked, stream=True))

    deltas = [each for each in events if each.type == f"response.{kind}.delta"]
    names = [each.type for each in events if each not in deltas[1:]]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        *around[:1],
        f"response.{kind}.delta",
        f"response.{kind}.done",
        *around[1:],
        "response.output_item.done",
        "response.completed",
    ]
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert is_call or len(deltas) > 1
    said = expected.output[0].arguments if is_call else expected.output_text
    assert "".join(each.delta for each in deltas) == said != ""
    assert plain(events[-1].response) == plain(expected)
    with client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text == expected.output_text


def test_formats(own_server: Served) -> None:
    """`text.format` gives JSON of a schema, and `parse` the type."""
    client = own_server.openai()
    schema = {"type": "json_schema", "name": "trip", "schema": SCHEMA}
    made = client.responses.create(model="demo", input="A trip?", text={"format": schema})
    jsonschema.validate(json.loads(made.output_text), SCHEMA)
    assert made.to_dict()["text"] == {"format": schema}
    parsed = client.responses.parse(model="demo", input="A trip?", text_format=Trip)
    assert isinstance(parsed.output_parsed, Trip)


def test_calls_and_results_are_items(tools: Served) -> None:
    """A conversation of items has the prompt of the same chat, with an earlier response or without."""
    client = tools.openai()
    first = client.responses.create(**CALLED, tool_choice={"type": "function", "name": "weather"})
    (call,) = first.output
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}
    options = {**CALLED, "max_output_tokens": 2}

    items: Any = [{"role": "user", "content": CALLED["input"]}, call.to_dict(), result]
    whole = client.responses.create(**{**options, "input": items})
    behind = client.responses.create(**{**options, "input": [result]}, previous_response_id=first.id)

    function = {"name": "weather", "arguments": call.arguments}
    messages = [
        {"role": "user", "content": CALLED["input"]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "7 degrees"},
    ]
    expected = chat(tools, messages, tools=TOOLS, max_tokens=2)
    for made in (whole, behind):
        assert made.usage.input_tokens == expected["usage"]["prompt_tokens"]
        assert made.output_text == expected["choices"][0]["message"]["content"]


def test_the_turns_of_an_answer_are_one_message(tools: Served) -> None:
    """Its reasoning, its text and its calls; the next text is another message."""
    call = {"type": "function_call", "call_id": "1", "name": "time", "arguments": "{}"}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    question = {
        "role": "user",
        "content": [{"type": "input_text", "text": "How "}, {"type": "input_text", "text": "?"}],
    }
    made = tools.openai().responses.create(
        model="demo",
        input=[question, said, call, {**call, "call_id": "2"}, said, said, {"role": "user", "content": "So?"}],
        tools=FUNCTIONS,
        max_output_tokens=1,
    )
    function = {"type": "function", "function": {"name": "time", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "How ?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [function, function]},
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "content": "I look."},
        {"role": "user", "content": "So?"},
    ]
    assert made.usage.input_tokens == chat(tools, messages, tools=TOOLS)["usage"]["prompt_tokens"]


def test_an_earlier_response_is_continued(own_server: Served) -> None:
    """By its caller only, without its instructions, and not if it was not stored."""
    client = own_server.openai()
    first = client.responses.create(**ASKED, instructions="Be brief.")
    again = client.responses.create(**{**ASKED, "input": "And of Paris?"}, previous_response_id=first.id, store=False)

    messages = [QUESTION, {"role": "assistant", "content": first.output_text}]
    expected = chat(own_server, [*messages, {"role": "user", "content": "And of Paris?"}])
    assert again.output_text == expected["choices"][0]["message"]["content"]
    assert again.usage.input_tokens == expected["usage"]["prompt_tokens"]
    assert again.previous_response_id == first.id
    for other, response_id in ((own_server.openai("bob"), first.id), (client, again.id), (client, "resp_x")):
        with pytest.raises(openai.NotFoundError, match=f"there is no response '{response_id}' here") as found:
            other.responses.create(**ASKED, previous_response_id=response_id)
        assert (found.value.code, found.value.param) == ("previous_response_not_found", "previous_response_id")


def test_messages_have_the_places_of_their_items(own_server: Served) -> None:
    """So diagnostics name the item, not the message that was made of it."""
    prompt, _ = chat_prompt("demo", ModuleBody(), [QUESTION], own_server.state, ["input[3]"])
    assert [each.span.source for each in prompt.messages] == ["input[3]"]


def test_the_memory_is_bounded() -> None:
    """By number and by bytes; what was used last stays."""
    memory = ResponseMemory(max_responses=2, max_bytes=100)
    for each in ("a", "b"):
        memory.put(None, each, [{"content": each}])
    assert memory.get(None, "a")
    memory.put(None, "c", [])
    assert [each for each in "abc" if memory.get(None, each) is not None] == ["a", "c"]
    memory.put(None, "d", [{"content": "x" * 90}])
    assert [each for each in "abcd" if memory.get(None, each) is not None] == []
    memory.put(None, "e", [])
    assert memory.get(None, "e") is not None


@pytest.mark.parametrize("is_stream", [False, True])
def test_reasoning_is_an_item(monkeypatch: pytest.MonkeyPatch, is_stream: bool) -> None:
    """It comes first, is counted, and may be sent back."""
    engine, _ = reasoning_engine(KEEPS, is_open=False)
    found = engine.generate([QUESTION], **saying(engine, SAID))
    service = ScriptedService(*found.token_ids, found)
    app = scripted(engine, service, monkeypatch)

    async def post(client: httpx.AsyncClient) -> tuple[str, httpx.Response]:
        text = (await client.post("/v1/responses", json={**ASKED, "stream": is_stream})).text
        data = text.removesuffix("\n\n").rpartition("data: ")[2]
        made = json.loads(data)["response"] if is_stream else json.loads(text)
        back = [QUESTION, *made["output"], QUESTION]
        assert [each["type"] for each in made["output"]] == ["reasoning", "message"]
        assert made["output"][0]["content"] == [{"type": "reasoning_text", "text": "Many."}]
        assert made["output"][1]["content"][0]["text"] == "Ceviche."
        assert made["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        return text, await client.post("/v1/responses", json={**ASKED, "input": back})

    text, response = in_process(app, post)

    assert response.status_code == 200
    assert [(each.text, each.reasoning) for each in service.prompts[1].messages] == [
        (QUESTION["content"], ""),
        ("Ceviche.", "Many."),
        (QUESTION["content"], ""),
    ]
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert not is_stream or {"response.reasoning_text.delta", "response.reasoning_text.done"} <= {*names}


def test_items_have_ids_of_their_own() -> None:
    """Text before and behind a call is two messages."""
    row = AnswerRow(ByteTokenizer(), ())
    row.items += [AnswerItem("message", 0), AnswerItem("function_call", 1), AnswerItem("message", 2)]
    answer: Any = SimpleNamespace(rows=[row], key="one", created=0, model="demo")
    form = ResponseForm(answer, echo={}, keep=lambda *_: None, num_tokens=len)

    texts = form.add(0, [AnswerDelta(each, "{}", begins=True) for each in row.items])

    events = [json.loads(each.partition("data: ")[2]) for each in texts]
    assert len({each["item"]["id"] for each in events if each["type"] == "response.output_item.added"}) == 3
