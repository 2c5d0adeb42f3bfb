"""Members of collections over HTTP: what clients see, and what only the admin key may change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.server.conftest import XML, Served

TEXT, LINES = ({"content-type": each} for each in ("text/plain", "application/jsonl"))
DOCUMENT = """<schema name="{0}"><module name="m"><collection name="docs" max="3">
<module name="one">The colour of the car of {0} is red.</module></collection></module></schema>"""


@pytest.fixture(params=["kb", "a/members/b"])
def place(served: Served, request: pytest.FixtureRequest) -> Iterator[str]:
    """The path of the members of a schema."""
    name: str = request.param
    path = f"/v1/schemas/{quote(name, safe='')}"
    with served.http("root") as client:
        assert client.put(path, content=DOCUMENT.format(name), headers=XML).status_code == 201
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
    """Without the admin key every change is 403; a schema that there is not is 404."""
    with served.http() as client:
        changes = [
            client.put(f"{place}/m/docs/two", content="A", headers=TEXT),
            client.post(f"{place}/m/docs", content="", headers=LINES),
            client.delete(f"{place}/m/docs/one"),
        ]
    unknown = served.get("/v1/schemas/nothing/members/docs")

    assert [each.status_code for each in changes] == [403] * 3
    assert served.get(f"{place}/m/docs/one").json()["text"].startswith("The colour of the car of ")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "schema_not_found")
