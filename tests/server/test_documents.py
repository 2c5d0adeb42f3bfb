"""Prompt documents over HTTP: answered, checked and planned as text, and never as the name of a file."""

import asyncio
import pkgutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from promptcache import Engine
from promptcache.server import ServerSettings, create_app
from tests.server.conftest import CHAT, CHATS, QUESTION, TRAVEL, XML, Served, answers, choices

PROMPT = f'<prompt schema="travel"><miami/><user>{QUESTION["content"]}</user></prompt>'
DTD = '<!DOCTYPE p [<!ENTITY x SYSTEM "file:///etc/passwd">]><prompt schema="travel"><miami/>&x;</prompt>'


def test_xml_and_json_have_one_answer(served: Served, engine: Engine) -> None:
    """A document by itself and in JSON is answered like a chat; JSON takes options."""
    plain = served.post("/v1/prompts", PROMPT)
    made = served.post("/v1/prompts", {"prompt": PROMPT, "temperature": 0, "max_tokens": 3})

    assert plain.status_code == 200, plain.text
    assert plain.json()["object"] == "chat.completion"
    assert choices(made)[0][0] == engine.generate(PROMPT, max_new_tokens=3, do_sample=False).text
    assert made.json()["prompt_cache"]["schema"] == "travel"


def test_answers_have_the_format_that_schema_or_prompt_state(served: Served) -> None:
    """Prompts and chats have the format of their schema; a prompt can have its own, but none in a file."""
    stated = '<schema name="vote">Will it rain? <answer type="choice" choices="yes|no"/></schema>'
    prompts = [f'<prompt schema="vote">{own}</prompt>' for own in ("", '<answer pattern="[1-9]"/>')]
    with served.http("root") as client:
        assert client.put("/v1/schemas/vote", content=stated, headers=XML).status_code == 201
        first, own = (choices(served.post("/v1/prompts", each))[0][0] for each in prompts)
        chats = choices(served.post(CHATS, {"model": "demo@vote", "messages": [QUESTION], "n": 3}), 3)
        file = served.post("/v1/prompts", prompts[0].replace("></", '><answer src="a.json"/></'))
        assert client.delete("/v1/schemas/vote").status_code == 200

    assert {first, *(text for text, _ in chats)} <= {"yes", "no"}
    assert own in [*"123456789"]
    assert (file.status_code, file.json()["error"]["code"]) == (400, "PC214")
    assert "a prompt that is given as text has none" in file.json()["error"]["message"]


_READERS = {
    "documents": ("parse_prompt",),
    "schemas": ("parse_document", "print_schema", "describe"),
}
"""What reads or writes whole documents, in the modules of the server."""


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("POST", "/v1/prompts", PROMPT),
        ("POST", "/v1/plan", PROMPT),
        ("POST", "/v1/check", PROMPT),
        ("POST", "/v1/layout.html", PROMPT),
        ("PUT", "/v1/schemas/travel", TRAVEL.read_text()),
        ("GET", "/v1/schemas/travel", None),
    ],
)
def test_documents_do_not_stop_other_answers(
    served: Served, monkeypatch: pytest.MonkeyPatch, method: str, path: str, document: str | None
) -> None:
    """No document is parsed, described or printed in the event loop: large ones take a second, and streams would wait."""
    called, in_the_loop = list[object](), list[object]()

    def watched(function: Callable[..., object], *args: object) -> object:
        called.append(function)
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            in_the_loop.append(function)
        return function(*args)

    for module, names in _READERS.items():
        for name in names:
            place = f"promptcache.server.{module}.{name}"
            monkeypatch.setattr(place, partial(watched, pkgutil.resolve_name(f"promptcache.server.{module}:{name}")))

    with served.http("root") as client:
        response = client.request(method, path, content=document, headers=XML)

    assert response.status_code == 200, response.text
    assert called
    assert not in_the_loop


def test_check_returns_diagnostics_with_places(served: Served) -> None:
    """Prompts are checked against their schema, schemas by themselves; documents with faults are no errors of HTTP."""
    typo = PROMPT.replace("<miami/>", "\n<maimi/>")
    good, bad = (served.post("/v1/check", each).json() for each in (PROMPT, typo))
    lost = '<schema name="x"><module name="a" requires="b"/></schema>'
    schema, dtd = (served.post("/v1/check", {"document": each}).json() for each in (lost, DTD))

    assert good == {"kind": "prompt", "valid": True, "diagnostics": [], "tools": []}
    assert (bad["kind"], bad["valid"]) == ("prompt", False)
    (fault,) = bad["diagnostics"]
    assert (fault["code"], fault["line"], fault["column"]) == ("PC401", 2, 2)
    assert (schema["kind"], schema["valid"]) == ("schema", False)
    assert [each["code"] for each in dtd["diagnostics"]] == ["PC002"]


def test_plans_and_answers_have_one_schema_and_reuse(served: Served) -> None:
    """A plan refuses the models that an answer refuses, follows `reuse`, and has no name for no schema."""
    unknown = served.post("/v1/plan", {"prompt": PROMPT, "model": "nope"})
    prefilled = served.post("/v1/plan", {"prompt": PROMPT, "reuse": False}).json()
    chat = served.post("/v1/plan", {"model": "demo", "messages": [QUESTION]}).json()

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert (prefilled["num_reused_tokens"], prefilled["modules"]) == (0, [])
    assert chat["schema"] is None


@pytest.mark.parametrize(("endpoint", "body"), [(CHATS, CHAT), ("/v1/prompts", {"prompt": PROMPT})])
def test_plans_refuse_what_answers_refuse(engine: Engine, endpoint: str, body: dict[str, Any]) -> None:
    """A limit, a number of answers or an option that a request may not have is the same error for its plan."""
    settings = ServerSettings(max_rows=2, max_waiting=3, max_new_tokens=4050)
    refused: list[dict[str, Any]] = [
        {"max_tokens": 4051},
        {"max_tokens": 1, "max_completion_tokens": 4051},
        {"max_tokens": 4050},  # with the prompt, more than the model has
        {"n": 4},
        {"temperature": 1e-6},
        {"repetition_penalty": 1e-6},
        {"logit_bias": {"x": 1}},
    ]
    app, asked = create_app(engine, settings), [{**body, **each} for each in refused]
    answered, planned = (answers(app, *asked, path=path) for path in (endpoint, "/v1/plan"))

    assert {each.status_code for each in answered} == {400}
    assert [(each.status_code, each.json()) for each in planned] == [(400, each.json()) for each in answered]


def test_prompts_with_too_many_positions(served: Served) -> None:
    """A prompt that no answer fits behind is a fault for `check` (PC504), and is refused by `plan` and `prompts`."""
    long = PROMPT.replace("<user>", f"<user>{'word ' * 5000}")
    checked = served.post("/v1/check", long).json()
    refused = [served.post(each, long) for each in ("/v1/plan", "/v1/prompts")]

    assert (checked["kind"], checked["valid"]) == ("prompt", False)
    (fault,) = checked["diagnostics"]
    assert (fault["code"], fault["severity"], fault["line"]) == ("PC504", "error", 1)
    assert "the model has 4096" in fault["message"]
    assert {(each.status_code, each.json()["error"]["code"]) for each in refused} == {(400, "context_length_exceeded")}
    assert refused[0].json()["error"]["message"] == fault["message"]


def test_a_prompt_is_checked_against_the_schema_that_comes_with_it(served: Served) -> None:
    """A schema in the request takes the place of the server's schema of its name, and is not added to the server."""
    schema = '<schema name="travel"><module name="rome">The airport of Rome is Red Hill.</module></schema>'
    prompt = '<prompt schema="travel"><rome/></prompt>'
    alone, given, other, broken = (
        served.post("/v1/check", {"document": prompt, **({"schema": each} if each else {})})
        for each in (None, schema, schema.replace("travel", "other"), "<schema/>")
    )
    of_schema = served.post("/v1/check", {"document": schema}).json()

    assert [each.json()["valid"] for each in (alone, given, other)] == [False, True, False]
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, "schema")
    assert [each["path"] for each in of_schema["schema"]["modules"]] == ["", "rome"]
    assert [each["id"] for each in served.get("/v1/schemas").json()["data"]] == ["travel"]


def test_a_description_has_modules_and_unions(served: Served) -> None:
    """Members of a union are listed in document order, and every module has its documentation."""
    schema = """<schema name="x"><doc>About x.</doc><module name="a" required="true"><doc>About a.</doc>A.
      <union name="u" default="c"><module name="b">B.</module><module name="c">C.</module></union></module></schema>"""
    found = served.post("/v1/check", {"document": schema}).json()["schema"]

    assert [(each["path"], each["required"], each["doc"]) for each in found["modules"]] == [
        ("", False, "About x."),
        ("a", True, "About a."),
        ("a/b", False, None),
        ("a/c", False, None),
    ]
    assert found["unions"] == [{"name": "u", "required": False, "default": "a/c", "members": ["a/b", "a/c"]}]


def test_layouts_are_drawn(served: Served) -> None:
    """The picture of a prompt shows what is new, that of a schema does not; a document with faults has no picture."""
    documents = [PROMPT, TRAVEL.read_text(encoding="utf-8"), PROMPT.replace("miami", "maimi")]
    prompt, schema, fault = (served.post("/v1/layout.html", {"document": each}) for each in documents)

    assert prompt.headers["content-type"].startswith("text/html")
    assert prompt.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert "new in this prompt" in prompt.text
    assert "new in this prompt" not in schema.text
    assert (fault.status_code, fault.json()["error"]["code"]) == (400, "PC401")


def test_plain_prefill_reuses_nothing(served: Served) -> None:
    """Without reuse no token is cached, twice in a row; and a later request finds nothing in history."""
    body = {"prompt": PROMPT.replace("dish", "beach"), "temperature": 0}
    served.state.engine.clear_history()
    plain = [served.post("/v1/prompts", {**body, "reuse": False}).json() for _ in range(2)]
    ours = served.post("/v1/prompts", body).json()

    assert [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in plain] == [0, 0]
    assert [(each["prompt_cache"]["modules"], each["prompt_cache"]["level"]) for each in plain] == [([], "exact")] * 2
    assert plain[0]["usage"]["prompt_tokens"] == ours["usage"]["prompt_tokens"]
    assert {each["source"] for each in ours["prompt_cache"]["modules"]} == {"hit"}


@pytest.mark.parametrize("text", ["/etc/passwd", str(TRAVEL), "schemas/travel.xml", "file:///etc/passwd", DTD])
@pytest.mark.parametrize("endpoint", ["/v1/prompts", "/v1/plan"])
def test_a_prompt_opens_no_file(served: Served, endpoint: str, text: str) -> None:
    """The name of a file is refused as text that is no XML, and a DTD is a fault, so that no entity reads a file."""
    for answer in (served.post(endpoint, {"prompt": text}), served.post(endpoint, text)):
        assert answer.status_code == 400
        assert answer.json()["error"]["code"].startswith("PC002" if text == DTD else "PC0")
        assert "root:" not in answer.text
        assert "Blue Harbour" not in answer.text
