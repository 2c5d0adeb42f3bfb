"""Schemas and members of collections over HTTP: what clients see, and what only the admin key may change."""

import asyncio
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from promptcache import Engine
from promptcache.language import parse_schema
from promptcache.server import SchemaFolder, create_app
from tests.server.conftest import CHATS, KEYS, TRAVEL, XML, Served, in_process

DOCUMENT = '<schema name="{}"><module name="one">The colour of the car is {}.</module></schema>'


def test_clients_see_schemas(served: Served) -> None:
    """A schema has its modules and parameters, and its document."""
    listed = served.get("/v1/schemas").json()["data"]
    schema = served.get("/v1/schemas/travel").json()
    missing = [served.get(f"/v1/schemas/{each}") for each in ("nothing", "..%2F..%2Fetc")]

    assert "travel" in [each["id"] for each in listed]
    assert not any("/plain" in each["id"] for each in listed)
    assert {"path": "miami", "required": False, "doc": None, "parameters": [], "collection": None} in schema["modules"]
    assert [each["members"] for each in schema["unions"]] == [["miami", "paris", "tokyo"]]
    assert parse_schema(schema["xml"]).name == "travel"
    assert [each.status_code for each in missing] == [404] * 2


def test_pairs_are_warmed_on_demand(served: Served) -> None:
    """Warming leaves out modules behind others, which are encoded with `pairs`."""
    modules = "".join(f'<module name="{name}">The colour of {name} is red.</module>' for name in "abc")
    document = f'<schema name="row">{modules}</schema>'.encode()
    with served.http("root") as client:
        client.put("/v1/schemas/row", content=document, headers=XML)
        plain, pairs = (client.post("/v1/schemas/row/warm", params=each).json() for each in ({}, {"pairs": True}))
        client.delete("/v1/schemas/row")

    assert pairs["num_encodings"] - plain["num_encodings"] == pairs["num_encoded"] == 3


@pytest.mark.parametrize("name", ["cars", "fleet/cars", "autos-ü"])
def test_administrator_changes_schemas(served: Served, name: str) -> None:
    """A schema is added, answered, replaced and removed, also if its name has a slash."""
    path = f"/v1/schemas/{quote(name, safe='')}"
    body = {"model": f"demo@{name}", "prompt_cache": {"use": ["one"]}, "messages": [{"role": "user", "content": "Hi"}]}
    with served.http("root") as client:
        made = client.put(path, content=DOCUMENT.format(name, f"red, says {name}").encode(), headers=XML)
        warmed = client.post(f"{path}/warm")
        asked = client.post(CHATS, json={**body, "max_tokens": 2})
        again = client.put(path, content=DOCUMENT.format(name, "blue").encode(), headers=XML)
        document = client.get(path).json()["xml"]
        gone = client.delete(path)
        after = client.post(CHATS, json=body)

    assert [each.status_code for each in (made, warmed, again, gone, after)] == [201, 200, 200, 200, 404], made.text
    assert made.json()["id"] == name
    assert warmed.json()["num_encoded"] > 0
    assert asked.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert "blue" in document
    assert gone.json() == {"id": name, "object": "schema", "deleted": True}


def test_names_that_end_like_other_paths(served: Served) -> None:
    """A schema may be named like the path of an action on another one, or of its members."""
    names = ["a", "a/warm", "a/members/b"]
    paths = {name: f"/v1/schemas/{quote(name, safe='')}" for name in names}
    with served.http("root") as client:
        made = [client.put(path, content=DOCUMENT.format(name, "red"), headers=XML) for name, path in paths.items()]
        found = [client.get(path).json()["id"] for path in paths.values()]
        warmed = [client.post(f"{path}/warm") for path in paths.values()]
        gone = [client.delete(path).json()["id"] for path in paths.values()]

    assert [each.status_code for each in made] == [201] * 3
    assert found == gone == names
    assert {each.status_code for each in warmed} == {200}


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (DOCUMENT.format("trucks", "red"), "invalid_value"),
        ('<schema name="cars"><include href="/etc/passwd"/></schema>', "PC"),
        ('<schema name="cars"><module name="a" src="/etc/passwd"/></schema>', "PC"),
        ('<!DOCTYPE s [<!ENTITY x SYSTEM "file:///etc/passwd">]><schema name="cars">&x;</schema>', "PC002"),
        ("/etc/passwd", "PC"),
        ("", "PC"),
    ],
)
def test_schemas_are_text_and_read_no_file(served: Served, document: str, code: str) -> None:
    """A document of another name, an include, a DTD and a path are refused."""
    with served.http("root") as client:
        response = client.put("/v1/schemas/cars", content=document, headers=XML)
        listed = client.get("/v1/schemas").json()["data"]

    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"].startswith(code)
    assert "root:" not in response.text
    assert "cars" not in [each["id"] for each in listed]


def _app(engine: Engine, folder: Path) -> FastAPI:
    """Return a server with the travel schema and a folder."""
    fresh = Engine(engine.model, engine.tokenizer)
    fresh.add_schema(TRAVEL)
    return create_app(fresh, keys=KEYS, schema_folder=SchemaFolder(folder))


def _restarted(engine: Engine, folder: Path, work: Callable[[httpx.AsyncClient], Awaitable[None]]) -> dict[str, str]:
    """Start a server with a folder, do some work, and return the documents of its schemas."""

    async def run(client: httpx.AsyncClient) -> dict[str, str]:
        client.headers["authorization"] = "Bearer root"
        await work(client)
        names = [each["id"] for each in (await client.get("/v1/schemas")).json()["data"]]
        return {each: (await client.get(f"/v1/schemas/{quote(each, safe='')}")).json()["xml"] for each in names}

    return in_process(_app(engine, folder), run)


async def _nothing(_client: httpx.AsyncClient) -> None:
    pass


def test_schemas_of_clients_survive_a_restart(engine: Engine, tmp_path: Path) -> None:
    """They are as they were added, replaced and removed, also in the place of a schema of the command."""

    async def change(client: httpx.AsyncClient) -> None:
        for written in ("cars red", "Cars white", "fleet/cars grey", "cars blue", "gone x"):
            name, colour = written.split()
            path, document = f"/v1/schemas/{quote(name, safe='')}", DOCUMENT.format(name, colour)
            assert (await client.put(path, content=document, headers=XML)).status_code in (200, 201)
        travel = TRAVEL.read_text(encoding="utf-8").replace("stone crab", "key lime pie")
        assert (await client.put("/v1/schemas/travel", content=travel, headers=XML)).status_code == 200
        assert (await client.delete("/v1/schemas/gone")).status_code == 200

    before = _restarted(engine, tmp_path / "kept", change)
    after = _restarted(engine, tmp_path / "kept", _nothing)

    assert {name: "blue" in each for name, each in after.items()}["cars"]
    assert "key lime pie" in after["travel"]
    assert sorted(after) == ["Cars", "cars", "fleet/cars", "travel"]
    assert after == before


def test_files_with_faults_are_named_and_others_are_served(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is cut, one under another name, and one that the model cannot take stop no other schema."""

    async def add(client: httpx.AsyncClient) -> None:
        for name in ("a", "b", "c", "d"):
            made = await client.put(f"/v1/schemas/{name}", content=DOCUMENT.format(name, "red"), headers=XML)
            assert made.status_code == 201

    _restarted(engine, tmp_path, add)
    first, second, third, _ = sorted(tmp_path.iterdir())
    first.write_text(first.read_text(encoding="utf-8")[:40], encoding="utf-8")
    second.rename(tmp_path / "b.xml")
    third.write_text('<schema name="c" positions="fixed"><collection name="x"/></schema>', encoding="utf-8")
    after = _restarted(engine, tmp_path, _nothing)

    assert sorted(after) == ["d", "travel"]
    faults = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.startswith("a schema is left out: ") for each in faults] == [True] * 3
    assert [file in fault for fault, file in zip(faults, (first.name, "b.xml", third.name), strict=True)] == [True] * 3
    assert f"the file of the schema 'b' is {second.name}" in faults[1]


def test_a_change_that_fails_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    """A schema that the model refuses leaves the earlier file; one that cannot be written is not added."""
    refused = '<schema name="cars" positions="fixed"><collection name="c"/></schema>'

    async def refuse(client: httpx.AsyncClient) -> None:
        await client.put("/v1/schemas/cars", content=DOCUMENT.format("cars", "red"), headers=XML)
        made = await client.put("/v1/schemas/cars", content=refused, headers=XML)
        assert made.status_code == 400, made.text

    async def lose(client: httpx.AsyncClient) -> None:
        shutil.rmtree(tmp_path / "kept")
        made = await client.put("/v1/schemas/trucks", content=DOCUMENT.format("trucks", "red"), headers=XML)
        assert (made.status_code, made.json()["error"]["code"]) == (500, "internal_error")

    _restarted(engine, tmp_path / "kept", refuse)
    after = _restarted(engine, tmp_path / "kept", lose)

    assert "red" in after["cars"]
    assert "trucks" not in after


def test_servers_share_a_folder(engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Servers have each other's changes. A file with a fault, and a folder that has gone, leave schemas as they were."""
    first, second = (_app(engine, tmp_path / "shared") for _ in range(2))
    headers = {"authorization": "Bearer root"}

    async def run(one: httpx.AsyncClient) -> None:
        one.headers.update(headers)
        async with (
            second.router.lifespan_context(second),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(second), base_url="http://localhost", headers=headers
            ) as other,
        ):
            await share(one, other)

    async def document(client: httpx.AsyncClient, wanted: Callable[[str | None], bool]) -> str | None:
        """Return the document of `cars` once it is the wanted one."""
        for _ in range(200):
            answer = await client.get("/v1/schemas/cars")
            found = answer.json()["xml"] if answer.status_code == 200 else None
            if wanted(found):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(found)

    async def share(one: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
        for client, colour in ((one, "red"), (other, "blue")):
            made = await client.put("/v1/schemas/cars", content=DOCUMENT.format("cars", colour), headers=XML)
            assert made.status_code in (200, 201), made.text
            await document(one, lambda found, colour=colour: colour in (found or ""))
            await document(other, lambda found, colour=colour: colour in (found or ""))
        (file,) = (tmp_path / "shared").iterdir()
        file.write_text("<schema", encoding="utf-8")
        await asyncio.sleep(2.5)
        assert "blue" in (await document(one, lambda _: True) or "")
        shutil.move(tmp_path / "shared", tmp_path / "away")
        await asyncio.sleep(1.5)
        assert "blue" in (await document(one, lambda _: True) or "")
        shutil.move(tmp_path / "away", tmp_path / "shared")
        assert (await one.delete("/v1/schemas/cars")).status_code == 200
        await document(other, lambda found: found is None)

    in_process(first, run)
    faults = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert sum("PC" in each for each in faults) == 2, faults  # one of each server
    assert all("a schema is left out" in each or "all schemas stay as they are" in each for each in faults)


TEXT, LINES = ({"content-type": each} for each in ("text/plain", "application/jsonl"))
WITH_MEMBERS = """<schema name="{0}"><module name="m"><collection name="docs" max="3">
<module name="one">The colour of the car of {0} is red.</module></collection></module></schema>"""


@pytest.fixture(params=["kb", "a/members/b"])
def place(served: Served, request: pytest.FixtureRequest) -> Iterator[str]:
    """The path of the members of a schema."""
    name: str = request.param
    path = f"/v1/schemas/{quote(name, safe='')}"
    with served.http("root") as client:
        assert client.put(path, content=WITH_MEMBERS.format(name), headers=XML).status_code == 201
        yield f"{path}/members"
        assert client.delete(path).json()["id"] == name


def test_members_come_and_go(served: Served, place: str) -> None:
    """A member is added, listed, asked for, replaced and removed."""
    two = f"{place}/m/docs/two"
    lines = "".join(json.dumps({"name": f"n{i}", "text": f"Note {i}."}) + "\n" for i in range(5))
    with served.http("root") as client:
        made = client.put(two, content="Its owner is Ada.", headers=TEXT)
        many = client.post(f"{place}/m/docs", content=lines + '{"name": "two", "text": "It is Bo."}', headers=LINES)
        seen = client.get(two).json()
        again = client.put(two, content="It is Cy.", headers=TEXT)
        first = client.get(f"{place}/m/docs", params={"prefix": "n", "limit": 2}).json()
        rest = client.get(f"{place}/m/docs", params={"after": "n1"}).json()
        prompt = f'<prompt schema="{seen["schema"]}"><m><docs><two/><n3/></docs></m><user>Who?</user></prompt>'
        asked = client.post("/v1/prompts", content=prompt, headers=XML)
        gone = client.delete(two)
        after = client.post("/v1/prompts", content=prompt, headers=XML)
        missing = [client.get(two), client.delete(two)]

    assert (made.status_code, made.json()["id"], again.status_code) == (201, "m/docs/two", 200)
    assert many.json() == {"object": "members", "added": 5, "replaced": 1}
    assert seen["text"] == "It is Bo."
    assert ([each["id"] for each in first["data"]], first["has_more"]) == (["m/docs/n0", "m/docs/n1"], True)
    assert [each["id"][7:] for each in rest["data"]] == ["n2", "n3", "n4", "one", "two"]
    assert not rest["has_more"]
    assert asked.status_code == 200, asked.text
    assert gone.json()["deleted"]
    assert (after.status_code, after.json()["error"]["code"]) == (400, "PC401")
    assert [(each.status_code, each.json()["error"]["code"]) for each in missing] == [(404, "member_not_found")] * 2


def test_members_are_warmed_on_demand(served: Served, place: str) -> None:
    """Warming a schema leaves its members out; with `members` it encodes them, once."""
    path = place.removesuffix("/members")
    with served.http("root") as client:
        usual = client.post(f"{path}/warm").json()
        first, again = (client.post(f"{path}/warm", params={"members": True}).json() for _ in range(2))
        unclear = client.post(f"{path}/warm", params={"members": "maybe"})

    assert first["num_encodings"] - usual["num_encodings"] == first["num_encoded"] == 1
    assert again["num_encoded"] == 0
    assert unclear.status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "said"),
    [
        ("PUT", "m/docs/two", "A", XML, 415, "text/plain"),
        ("PUT", "m/docs/two", " ", TEXT, 400, "is empty"),
        ("PUT", "m/docs/a b", "A", TEXT, 400, "cannot be the name"),
        ("PUT", "m/dcos/two", "A", TEXT, 400, "did you mean 'm/docs'"),
        ("PUT", "m/docs/two", b"\xff", TEXT, 400, "UTF-8"),
        ("POST", "m/docs", '{"name": "x", "text": "X"}\n{}', LINES, 400, "a name and a text"),
        ("GET", "m/docs?limit=0", "", {}, 400, "limit"),
        ("GET", "m/docs?limit=many", "", {}, 400, "limit: Input should be a valid integer"),
        ("GET", "m", "", {}, 400, "no collection"),
    ],
)
def test_wrong_changes_are_refused(
    served: Served, place: str, method: str, path: str, content: str, headers: dict[str, str], status: int, said: str
) -> None:
    """The error names what is wrong, and no member was added."""
    with served.http("root") as client:
        response = client.request(method, f"{place}/{path}", content=content, headers=headers)
        names = [each["id"] for each in client.get(f"{place}/m/docs").json()["data"]]

    assert (response.status_code, said in response.json()["error"]["message"]) == (status, True), response.text
    assert names == ["m/docs/one"]


def test_clients_only_read(served: Served, place: str) -> None:
    """Without the admin key every change is 403, before the document is read; a schema that there is not is 404."""
    changes = [
        ("PUT", "/v1/schemas/cars", DOCUMENT.format("cars", "red"), XML),
        ("DELETE", "/v1/schemas/travel", None, {}),
        ("POST", "/v1/schemas/travel/warm", None, {}),
        ("PUT", f"{place}/m/docs/two", "A", TEXT),
        ("POST", f"{place}/m/docs", "", LINES),
        ("DELETE", f"{place}/m/docs/one", None, {}),
    ]
    with served.http() as client:
        found = [client.request(method, path, content=text, headers=kind) for method, path, text, kind in changes]
    unknown = served.get("/v1/schemas/nothing/members/docs")

    assert [(each.status_code, each.json()["error"]["type"]) for each in found] == [(403, "permission_error")] * 6
    assert served.get(f"{place}/m/docs/one").json()["text"].startswith("The colour of the car of ")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "schema_not_found")
