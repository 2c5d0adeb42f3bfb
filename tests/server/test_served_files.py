"""Schemas with files over HTTP: clients use the files that a served schema was read with, and open no other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from promptcache.server import ApiKeys, create_app
from promptcache.server.gate import digests
from tests.server.conftest import XML, Served, engine_with, running

SECRET = "The password is swordfish."
MAIN = """<schema name="house"><include href="parts/rooms.xml"/>
<module name="plan" src="plan.txt"/><collection name="notes" src="notes.jsonl"/></schema>"""
ROOMS = '<schema name="rooms"><module name="kitchen" src="kitchen.txt"/></schema>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a schema that includes another one, with files that neither names."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "parts").mkdir()
    written = {
        "house.xml": MAIN,
        "plan.txt": "The colour of the house is red.",
        "notes.jsonl": json.dumps({"name": "attic", "text": "The attic is dry."}),
        "parts/rooms.xml": ROOMS,
        "parts/kitchen.txt": "The colour of the kitchen is blue.",
        "secret.txt": SECRET,
        "secret.jsonl": json.dumps({"name": "password", "text": SECRET}),
        "secret.xml": f'<schema name="secret"><module name="password">{SECRET}</module></schema>',
    }
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def house(folder: Path) -> Iterator[Served]:
    """A server of this schema, with one administrator."""
    engine = engine_with(folder / "house.xml")
    yield from running(create_app(engine, keys=ApiKeys(admins=digests(["root"]))))


def check(client: httpx.Client, document: str, **more: str) -> dict[str, Any]:
    """Return what the server finds in a document."""
    found: dict[str, Any] = client.post("/v1/check", json={"document": document, **more}).json()
    return found


def test_the_document_of_a_served_schema_is_valid(house: Served) -> None:
    """What the server shows of a schema with `src` and `include` has no faults, a picture, and can be edited."""
    prompt = '<prompt schema="house"><kitchen/><new/><notes><attic/></notes>Hi</prompt>'
    with house.http(None) as client:
        xml = client.get("/v1/schemas/house").json()["xml"]
        same = check(client, xml)
        edited = xml.replace("</schema>", '<module name="new" src="plan.txt"/></schema>')
        changed = check(client, edited)
        used = check(client, prompt, schema=edited)
        pictures = [client.post("/v1/layout.html", json={"document": each}) for each in (xml, edited)]

    assert (same["valid"], same["diagnostics"]) == (True, []), same
    assert [each["path"] for each in changed["schema"]["modules"]] == ["", "kitchen", "plan", "notes", "new"]
    assert changed["schema"]["modules"][3]["collection"] == {"min": 0, "max": None}
    assert (used["valid"], used["diagnostics"]) == (True, []), used
    assert [each.status_code for each in pictures] == [200, 200]
    assert "The colour of the kitchen is blue." in pictures[0].text
    assert pictures[1].text.count("The colour of the house is red.") > 1


def test_a_saved_schema_keeps_its_files(house: Served, folder: Path) -> None:
    """An administrator replaces a schema as the page shows it; its texts are those of before, also without the file."""
    with house.http("root") as client:
        xml = client.get("/v1/schemas/house").json()["xml"]
        (folder / "plan.txt").rename(folder / "gone.txt")
        saved = client.put("/v1/schemas/house", content=xml, headers=XML)
        (folder / "gone.txt").rename(folder / "plan.txt")
        again = client.get("/v1/schemas/house").json()["xml"]
        plan = client.post("/v1/plan", content='<prompt schema="house"><notes><attic/></notes>Hi</prompt>', headers=XML)

    assert saved.status_code == 200, saved.text
    assert again == xml
    assert plan.status_code == 200, plan.text


HOSTILE = {
    "a file beside it": '<module name="m" src="secret.txt"/>',
    "the schema itself": '<module name="m" src="house.xml"/>',
    "a file above it": '<module name="m" src="../{folder}/secret.txt"/>',
    "an absolute path": '<module name="m" src="{path}/secret.txt"/>',
    "a file of the system": '<module name="m" src="/etc/passwd"/>',
    "members": '<collection name="m" src="secret.jsonl"/>',
    "members with an absolute path": '<collection name="m" src="/etc/passwd"/>',
    "a schema": '<include href="secret.xml"/>',
    "a schema that was included": '<module name="b"><include href="parts/rooms.xml"/></module>',
    "a schema with an absolute path": '<include href="{path}/secret.xml"/>',
    "members as text": '<module name="m" src="notes.jsonl"/>',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_no_other_file_is_opened(house: Served, folder: Path, content: str) -> None:
    """A document that names another file gets no text of it, and no word on whether it exists, from any endpoint."""
    written = content.format(folder=folder.name, path=folder)
    absent = written.replace("secret", "absent").replace("passwd", "absent").replace("house", "absent")
    found = []
    with house.http("root") as client:
        for each in (written, absent):
            document = f'<schema name="house">{each}</schema>'
            checked = check(client, document)
            picture = client.post("/v1/layout.html", json={"document": document})
            prompt = {"document": '<prompt schema="house">Hi</prompt>', "schema": document}
            with_prompt = client.post("/v1/layout.html", json=prompt)
            answers = [json.dumps(checked), picture.text, with_prompt.text]
            assert not [text for text in answers if "swordfish" in text or "password" in text or "root:" in text]
            found.append(
                ([each["code"] for each in checked["diagnostics"]], picture.status_code, with_prompt.status_code)
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["other", "", "house&#47;", "parts/rooms"])
def test_a_document_of_another_name_has_no_files(house: Served, name: str) -> None:
    """Only a document with the name of a served schema may name its files."""
    with house.http("root") as client:
        document = f'<schema name="{name}"><module name="m" src="plan.txt"/></schema>'
        checked = check(client, document)
        saved = client.put("/v1/schemas/other", content=document, headers=XML)

    assert "PC214" in [each["code"] for each in checked["diagnostics"]]
    assert saved.status_code == 400
