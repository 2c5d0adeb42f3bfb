"""Bodies and paths that are refused, before anything is queued: each has a status, a code, its place and a reason."""

import json
import time
from typing import Any

import openai
import pytest

from promptcache.server.bodies import ChatBody
from promptcache.server.errors import ApiError
from promptcache.server.read_body import checked_body
from tests.engine.calling import CALLED, TOOLS, tool
from tests.server.conftest import CHAT, CHATS, QUESTION, Served

TEXTS, RESPONSES = "/v1/completions", "/v1/responses"
JSON = {"content-type": "application/json"}
LONE = "\ud800"
NO_FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"not": {}}}}
SET = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"a": {"uniqueItems": True}}}}}
FUNCTIONS = [{"type": "function", **each["function"]} for each in TOOLS]


def bad(param: str | None, said: str = "", /, code: str = "invalid_value", **changes: Any) -> Any:
    """Return a case: changes of a body, and what is said about them. Other fields with faults are counted."""
    return pytest.param(changes, code, param, said, id=f"{param} {said}"[:50])


def unsupported(param: str | None, said: str, /, **changes: Any) -> Any:
    """Return a case of a field that is known, and not supported."""
    return bad(param, said, "unsupported_parameter", **changes)


def modules(param: str | None, said: str = "", /, code: str = "invalid_value", **cache: Any) -> Any:
    """Return a case of the field `prompt_cache`."""
    return bad(param and f"prompt_cache.{param}", said, code, prompt_cache=cache)


def of_user(content: object) -> list[dict[str, Any]]:
    """Return messages."""
    return [{"role": "user", "content": content}]


DEEP: Any = []
for _ in range(70):
    DEEP = [DEEP]

OF_CHATS = [
    modules("use[0]", "did you mean 'miami'?", code="PC401", use=["maimi"]),
    modules("use[1]", code="PC405", use=["miami", "miami"]),
    modules("use.miami.days", code="PC402", use={"miami": {"days": "1"}}),
    modules(None, code="PC408", use=["miami", "paris"]),
    modules("schema", schema="other"),
    modules("repair", use=["miami"], repair="first-x"),
    modules("repair", "text without lone surrogates is expected", use=["miami"], repair=LONE),
    modules("use", "use='miami' is not allowed: an object or a list is expected", use="miami"),
    modules("use[1]", use=["miami", 3]),
    modules("use[1]", "text without lone surrogates is expected", use=["miami", LONE]),
    modules("use", "it has 10,001 items, and at most 10,000 are allowed", use=[1] * 10_001),
    modules("use[0]", "use[0]=1 is not allowed: text is expected", use=[1] * 10_000),
    modules("use.trip-plan.duration", use={"trip-plan": {"duration": True}}),
    modules("use.trip-plan.duration", "lone surrogates", use={"miami": {}, "trip-plan": {"duration": LONE}}),
    modules("fill.a", fill={"a": None}),
    modules("fill", "it has 10,001 items", fill={str(each): 1 for each in range(10_001)}),
    modules("fill.x0", "text or a whole number or", fill={f"x{each}": [] for each in range(10_000)}),
    modules("fill.a", "text or a whole number or", fill={"a": [[] for _ in range(2)]}),
    modules("schemas", "did you mean 'schema'?", schemas="x"),
    modules("modules", "known here: schema, use, fill, repair, deterministic", modules=["miami"]),
    bad("prompt_cache", "an object with schema, use, fill, repair, deterministic is expected", prompt_cache="travel"),
    bad("model", "text without lone surrogates is expected", model=LONE),
    bad("messages[0].content[0].type", messages=of_user([{"type": "image_url", "image_url": {"url": "data:,"}}])),
    bad("messages[0].content", messages=of_user([])),
    bad("messages[0].content", "text without lone surrogates is expected", messages=of_user(LONE)),
    bad(
        "messages[0].reasoning_details",
        messages=[{"role": "assistant", "content": "a", "reasoning_details": [{"text": "b"}]}],
    ),
    bad(None, code="invalid_request", messages=[{"role": "tool", "content": "x"}]),
    bad("messages[0].role", messages=[{"role": "function", "content": "x"}]),
    bad("messages", messages="hello"),
    bad("messages", "messages is missing: add it", messages=None),
    bad(None, "positions", code="context_length_exceeded", messages=of_user("word " * 6000)),
    bad("tools", tools=[{"type": "function"}]),
    bad("tool_choice", tool_choice={"type": "any"}),
    bad("tool_choice", tool_choice="get_weather"),
    bad("response_format.type", response_format={"type": "grammar"}),
    bad("response_format", response_format={"type": "json_schema"}),
    bad("response_format", "Unimplemented keys", response_format=NO_FORM),
    bad("logit_bias", logit_bias={"a": 2}),
    bad("logit_bias.1", logit_bias={"1": "2"}),
    bad(None, logit_bias={"999999": 2}),
    bad("top_logprobs", top_logprobs=21, logprobs=True),
    bad("top_logprobs", top_logprobs=3),
    bad("stop", "empty is expected; temperature=-1 is not allowed: 0, or", temperature=-1, stop="", max_token=1),
    bad("n", "n=0 is not allowed: greater than or equal to 1 is expected", n=0),
    bad("max_tokens", "max_tokens='9' is not allowed: a whole number, without quotes, is expected", max_tokens="9"),
    bad("max_tokens", max_tokens=0),
    bad("max_tokens", max_tokens=4.5),
    bad("max_tokens", max_tokens=2000),
    bad("max_completion_tokens", max_completion_tokens=5000),
    bad("n", n=17),
    bad("stop", "is not allowed: List should have at most 16 items after validation, not 17", stop=["a"] * 17),
    bad("stop", "stop='' is not allowed: text that is not empty is expected", stop=""),
    bad("stop[1]", stop=["a", ""]),
    bad("stop[1]", "text without lone surrogates is expected", stop=["a", LONE]),
    bad("reasoning", reasoning={"effort": "low"}),
    bad("stream_options.x", stream_options={"x": 1}),
    bad("chat_template_kwargs", chat_template_kwargs={f"x{each}": 1 for each in range(33)}),
    bad("metadata" + 63 * "[0]", "lists and objects may be 64 deep", metadata=DEEP),
    bad("metadata", "text without lone surrogates is expected", metadata={LONE: "x"}),
    bad("max_token", "max_token is not known: did you mean 'max_tokens'?", max_token=3),
    bad("promt_cache", "promt_cache is not known: did you mean 'prompt_cache'?", promt_cache={}),
    bad(None, "the body is not allowed: text without lone surrogates is expected", **{LONE: 1}),
]
OF_TEXTS = [
    bad("prompt", prompt=[]),
    bad("prompt[0]", prompt=[1, 2]),
    bad("prompt[0]", prompt=[["a"]]),
    bad("prompt", prompt=["a"] * 129, n=2),
    bad("prompt", prompt=LONE),
    bad("repair", repair="first-x"),
    unsupported("tools", "'tools' need a chat", tools=TOOLS),
]
WITH_TOOLS = [
    bad("tools", "two tools with the name 'f'", tools=[tool("f"), tool("f")]),
    bad("tool_choice", "names 'other', which is none of the tools", tools=TOOLS, tool_choice="other"),
    bad("tools", "the parameters of 'weather' cannot be used: Unimplemented keys", tools=[SET], tool_choice="required"),
    unsupported("reasoning_effort", "does not read reasoning_effort", reasoning_effort="low"),
]
OF_RESPONSES = [
    unsupported("background", "'background' is not supported", background=True),
    unsupported("reasoning.effort", "does not read reasoning.effort; leave it out", reasoning={"effort": "low"}),
    bad("reasoning.summary", "reasoning.summary is not known: known here: effort", reasoning={"summary": "auto"}),
    bad("best_of", "best_of is not known", best_of=1),
    unsupported("tools[0].type", "tools[0].type='web_search' is not supported", tools=[{"type": "web_search"}]),
    bad("tools", "tools[0].name='a b' is not allowed", tools=[{**FUNCTIONS[0], "name": "a b"}]),
    unsupported("tool_choice.type", "tool_choice.type='mcp'", tools=FUNCTIONS, tool_choice={"type": "mcp"}),
    bad("tool_choice.name", "tool_choice.name is missing", tools=FUNCTIONS, tool_choice={"type": "function"}),
    bad("tool_choice", "tool_choice names 'f'", tools=FUNCTIONS, tool_choice="f"),
    unsupported("input[0].type", "'item_reference' is not supported", input=[{"type": "item_reference", "id": "x"}]),
    bad("input[0]", "input[0] is not allowed: an object is expected", input=["x"]),
    unsupported("input[0].content[0].type", "'input_image' is not supported", input=of_user([{"type": "input_image"}])),
    bad(
        "input[0].arguments",
        "JSON of an object is expected",
        input=[{"type": "function_call", "call_id": "1", "name": "f", "arguments": "[]"}],
    ),
    bad("input", "input=[] is not allowed: List should have at least 1 item", input=[]),
    bad("max_output_tokens", "max_output_tokens=1000000 is more than", max_output_tokens=10**6),
    bad(
        "text.format",
        "Unimplemented keys",
        text={"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}},
    ),
]


def check_refusal(served: Served, path: str, body: object, code: str, param: str | None, said: str) -> None:
    """Send a body, and check the error."""
    response = served.post(path, content=json.dumps(body), headers=JSON)
    error = response.json()["error"]

    assert (response.status_code, error["code"]) == (400, code), error
    assert error["type"] == "invalid_request_error"
    assert (said or param or "") in error["message"]
    assert error["message"]
    assert error["param"] == param or (code.startswith("PC4") and param is None)


KINDS: dict[str, tuple[str, str, dict[str, Any], list[Any]]] = {
    "chats": ("served", CHATS, CHAT, OF_CHATS),
    "texts": ("served", TEXTS, {"model": "demo", "prompt": "x"}, OF_TEXTS),
    "tools": ("tools", CHATS, {"model": "demo", "messages": CALLED[:1]}, WITH_TOOLS),
    "responses": ("tools", RESPONSES, {"model": "demo", "input": "x"}, OF_RESPONSES),
}


@pytest.mark.parametrize(
    ("kind", "changes", "code", "param", "said"),
    [pytest.param(kind, *each.values, id=f"{kind} {each.id}") for kind, (*_, cases) in KINDS.items() for each in cases],
)
def test_bodies(
    request: pytest.FixtureRequest, kind: str, changes: dict[str, Any], code: str, param: str | None, said: str
) -> None:
    """What a server cannot answer as asked is refused with its place, and what would change the answer is not dropped."""
    at, path, body, _ = KINDS[kind]
    check_refusal(request.getfixturevalue(at), path, {**body, **changes}, code, param, said)


BROKEN = {
    "empty": (b"", "it is empty"),
    "XML": (b'<prompt schema="travel"/>', "XML is sent with content-type: application/xml"),
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
    response = served.post(CHATS, content=body, headers=JSON)

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_json", None)
    assert error["message"].startswith("the body is not")
    assert words in error["message"]


FIELDS = {
    CHATS: "messages",
    TEXTS: "prompt",
    "/v1/prompts": "prompt",
    "/v1/plan": "prompt",
    "/v1/check": "document",
    "/v1/layout.html": "document",
}


@pytest.mark.parametrize(("path", "field"), FIELDS.items())
def test_bodies_are_read_alike_at_all_endpoints(served: Served, path: str, field: str) -> None:
    """Other content types, and chats in XML, are 415; broken JSON, missing fields, and lone surrogates 400 in place."""
    text = json.dumps(CHAT)
    kinds = [None, "text/plain", "application/vnd.api+json", *(["application/xml"] if path == CHATS else [])]
    other = [served.post(path, content=text, headers={"content-type": each} if each else {}) for each in kinds]
    broken = served.post(path, content="[]", headers={"content-type": "Application/JSON; charset=utf-8"})
    faults = [
        {"model": "demo"},
        {"model": "demo", field: [{"role": "user", "content": LONE}] if path == CHATS else LONE},
    ]
    places = [served.post(path, content=json.dumps(each), headers=JSON).json()["error"]["param"] for each in faults]

    assert {(each.status_code, each.json()["error"]["code"]) for each in other} == {(415, "unsupported_media_type")}
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
    assert places[0] == field
    assert places[1].startswith(field)


def test_options_of_documents(served: Served) -> None:
    """An unknown repair, and the number of most probable tokens without log-probabilities, are refused in documents."""
    prompt = {"prompt": '<prompt schema="travel"><miami/>Hi</prompt>'}
    for path, field, changes in [
        *((path, "repair", {"repair": "first-x"}) for path in ("/v1/prompts", "/v1/plan")),
        ("/v1/prompts", "top_logprobs", {"top_logprobs": 3, "logprobs": False}),
        ("/v1/layout.html", "schema", {"document": "x", "schema": LONE}),
    ]:
        check_refusal(served, path, {**prompt, **changes}, "invalid_value", field, "")


def test_errors_answer_with_any_text() -> None:
    """An error whose message has a lone surrogate is still an answer."""
    body = bytes(ApiError(404, "not_found", f"there is no {LONE}").response().body)

    assert json.loads(body)["error"]["message"] == f"there is no {LONE}"


@pytest.mark.parametrize("num", [9_000, 90_000])
def test_faults_take_time_in_proportion_to_the_body_at_most(num: int) -> None:
    """A body full of faults is checked until the first one."""
    values = {"use": {f"m{module}": {str(each): [] for each in range(9_000)} for module in range(num // 9_000)}}
    started = time.thread_time()
    with pytest.raises(ApiError):
        checked_body(ChatBody, {**CHAT, "prompt_cache": values})

    assert time.thread_time() - started < 0.5


def test_openais_client_raises_its_own_classes(served: Served, own_server: Served) -> None:
    """400, 401, 403 and 404 are classes of the client; an error carries its code and all diagnostics of the prompt."""

    def ask(model: str = "demo", at: Served = served, **options: Any) -> None:
        at.openai().chat.completions.create(model=model, messages=[QUESTION], **options)

    with pytest.raises(openai.BadRequestError) as prompt:
        ask("demo@travel", extra_body={"prompt_cache": {"use": ["maimi", "romee"]}})
    with pytest.raises(openai.AuthenticationError) as key:
        served.openai("eve").models.list()
    with pytest.raises(openai.PermissionDeniedError):
        served.openai().put("/schemas/x", cast_to=object, body={})
    with pytest.raises(openai.NotFoundError) as model:
        ask("gpt-4")
    with pytest.raises(openai.NotFoundError) as schema:
        ask(extra_body={"prompt_cache": {"schema": "../etc"}})
    with pytest.raises(openai.NotFoundError, match=r"this server has no embeddings, .* ask a server of an embedding"):
        served.openai().embeddings.create(model="demo", input="x")
    with pytest.raises(openai.BadRequestError, match="the chat template of this model writes no tools"):
        ask(at=own_server, tools=TOOLS)

    assert [each["code"] for each in prompt.value.body["diagnostics"]] == ["PC401", "PC401"]
    assert schema.value.param == "prompt_cache.schema"
    codes = ["PC401", "invalid_api_key", "model_not_found", "schema_not_found"]
    assert [each.value.code for each in (prompt, key, model, schema)] == codes


METHODS = {
    "/v1/schemas/travel": "HEAD, GET, PUT, DELETE",
    "/v1/schemas/travel/warm": "HEAD, GET, PUT, POST, DELETE",
    CHATS: "POST",
    "/health": "HEAD, GET",
    "/page/page.js": "GET, HEAD",
}


def test_paths_and_methods(served: Served) -> None:
    """An unknown path is named, and not redirected to the client's own header; 405 lists the methods of a path."""
    other = {"host": "elsewhere"}
    unknown = [served.get("/v1/nothing"), served.post(f"{CHATS}/", CHAT, headers=other), served.post(f"{CHATS}x", CHAT)]
    with served.http() as client:
        for path, methods in METHODS.items():
            for method in ("OPTIONS", "PATCH"):
                response = client.request(method, path)
                assert (response.status_code, response.headers["allow"]) == (405, methods)
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    assert {(each.status_code, each.json()["error"]["code"]) for each in unknown} == {(404, "not_found")}
    said = f"POST '{CHATS}x': Not Found; GET / lists the endpoints"
    assert unknown[2].json()["error"]["message"].startswith(said)
    assert served.get("/v1/models/").json() == served.get("/v1/models").json()


def test_head_is_get_without_a_body(served: Served) -> None:
    """HEAD has the status and headers of GET at each of its endpoints, and no body; elsewhere it is 405."""
    paths = ["/", "/livez", "/health", "/v1/models", "/v1/schemas/travel", "/v1/schemas/no", "/page/page.js"]
    with served.http() as client:
        for path in paths:
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.headers["content-length"]) == (get.status_code, str(len(get.content)))
            assert (head.text, head.headers["content-type"]) == ("", get.headers["content-type"])
        assert client.head("/metrics", headers={"authorization": "Bearer root"}).status_code == 200
        assert client.head("/v1/prompts").status_code == 405
