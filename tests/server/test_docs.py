"""docs/serving.md and docs/scaling.md: their examples run."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import promptcache
from promptcache import Engine
from promptcache.server import ServerSettings, create_app
from tests.server.conftest import CHATS, KEYS, Served, in_process

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serving.md").read_text(encoding="utf-8")
CURL = re.findall(r"curl http://127.0.0.1:8000(\S+) -H 'content-type: application/json' -d '(.*?)'\n", PAGE, re.DOTALL)


@pytest.mark.parametrize("page", ["serving.md", "scaling.md"])
def test_python_runs(served: Served, capsys: pytest.CaptureFixture[str], page: str) -> None:
    """The example with OpenAI's client answers the question."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(code.replace("http://127.0.0.1:8000", served.url).replace('"none"', '"alice"'), names)
    names["client"].close()  # type: ignore[attr-defined]

    assert capsys.readouterr().out.startswith("The best dish of Miami is stone crab.\n")


@pytest.mark.parametrize(("path", "body"), CURL)
def test_curl_runs(served: Served, path: str, body: str) -> None:
    """The bodies of the examples are answered."""
    with served.http() as client:
        response = client.post(path, json=json.loads(body))

    assert response.json()["choices"][0]["message"]["content"]


ROUTES = ("/openapi.json", "/docs", "/version")


def _answers(engine: Engine, **given: Any) -> list[httpx.Response]:
    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.get(each) for each in ROUTES]

    return in_process(create_app(engine, **given), ask)


def test_the_endpoints_are_described(engine: Engine) -> None:
    """OpenAPI has each endpoint, and the fields of its body with their types. Its page names them, and loads nothing."""
    described, page, version = _answers(engine)
    document = described.json()
    listed = re.findall(r"^\| `((?:GET|PUT|POST|DELETE)[^|]*)` \|", PAGE, re.MULTILINE)
    paths = set(re.findall(r"/[\w/{}.]+", " ".join(listed).replace("[/{name}]", " /v1/schemas/{name}")))
    body = document["components"]["schemas"]["ChatBody"]["properties"]

    assert version.json() == {"version": promptcache.__version__} == {"version": document["info"]["version"]}
    assert paths - {"/docs", "/openapi.json"} <= document["paths"].keys()
    assert document["paths"][CHATS]["post"]["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/ChatBody"
    }
    assert (body["seed"]["type"], body["temperature"]["type"]) == ("integer", "number")
    for place in re.findall(r'"#/components/schemas/(\w+)"', described.text):
        assert f'<h3 id="{place}">' in page.text
    assert not re.findall(r"<script|<style|http|src=|\son\w+=", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_where_keys_are_needed_the_description_is_an_option(engine: Engine) -> None:
    """With keys of clients there is none; with `docs` everyone may read it, but not the version."""
    found = [_answers(engine, keys=KEYS, settings=ServerSettings(docs=each)) for each in (None, True)]

    assert [[each.status_code for each in answers] for answers in found] == [[404, 404, 401], [200, 200, 401]]
