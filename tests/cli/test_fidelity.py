"""`promptcache fidelity`: its tables, exit codes and files. Most tests have made-up figures instead of a model."""

import json
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from promptcache.cli.settings import EngineOptions
from promptcache.fidelity import AS_IT_IS, Fidelity, Interval, PromptFidelity, Setting, SettingFidelity
from promptcache.language import parse_schema, with_root_attribute
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("folder")

SCHEMA = """\
<?xml version="1.0"?>
<!-- <schema name="old"> -->
<schema  name='notes'
         version="1.0" >
  <module name="a">Alpha.</module>
  <module name="b">Beta é.</module>
  <example valid="true"><prompt schema="notes"><a/><b/>Well?</prompt></example>
</schema>
"""


def figures(setting: Setting, millinats: float, ttft: float) -> SettingFidelity:
    mean = millinats / 1000
    return SettingFidelity(
        setting=setting,
        repair=setting.value if setting.attribute == "repair" else "slots",
        divergence=Interval(value=mean, low=mean, high=mean),
        agreement=0.75,
        same_answer=0.5,
        exact=0.0,
        ttft_s=ttft,
        relative_ttft=ttft,
        nbytes=2048,
    )


MEASURED = Fidelity(
    schema="notes",
    prompts=(PromptFidelity(name="both", xml='<prompt schema="notes"/>', divergence=0.02, same_answer=False),),
    settings=(figures(AS_IT_IS, 20.0, 0.3), figures(Setting.named("repair=first-8"), 5.0, 0.5)),
    refused=(("positions=fixed", "it needs 9 positions"),),
    plain_ttft_s=0.1,
)


@pytest.fixture
def measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The schema's file; every measurement gives `MEASURED`."""
    engine = SimpleNamespace(model=SimpleNamespace(shape=SimpleNamespace(dtype=torch.float32, device="cpu")))
    monkeypatch.setattr(EngineOptions, "load", lambda _: engine)
    monkeypatch.setattr(import_module("promptcache.fidelity"), "measure_fidelity", lambda *_, **__: MEASURED)
    (folder / "notes.xml").write_text(SCHEMA, encoding="utf-8")
    return folder / "notes.xml"


@pytest.mark.usefixtures("measured")
def test_a_schema_above_the_limit_fails(command: Command) -> None:
    """With --max-kl the exit code says whether the schema is near enough, and the text what to do; so does JSON."""
    passed, failed, hopeless = (command("fidelity", "notes.xml", "--max-kl", limit) for limit in ("25", "8", "2"))
    free = command("fidelity", "notes.xml")
    found = json.loads(command("fidelity", "notes.xml", "--max-kl", "8", "--json").stdout)

    assert [each.exit_code for each in (passed, failed, free, hopeless)] == [0, 1, 0, 1]
    assert "the schema as it is: 20.0 millinats, 12.0 above the limit of 8.0" in failed.stdout
    assert 'recommended: repair="first-8"' in failed.stdout
    assert "keep the schema as it is" in passed.stdout
    assert "no setting that can be recommended is near enough" in hopeless.stdout
    assert "left out: positions=fixed: it needs 9 positions" in free.stdout
    for each in found["settings"]:
        value = f"{1000 * each['divergence']['value']:.1f}"
        assert re.search(rf"{each['setting']} +│ {value} \({value} to {value}\) +│ 75 +│ 50 ", free.stdout)
    assert (found["recommended"], found["passed"], found["written"]) == ("repair=first-8", False, False)
    assert found["schema"] == {"name": "notes", "file": "notes.xml"}


def test_write_changes_the_attribute_only(command: Command, measured: Path) -> None:
    """--write sets or replaces the recommended attribute of the root element, if an attribute is recommended."""
    for limit in ("25", "2"):
        command("fidelity", "notes.xml", "--max-kl", limit, "--write")
        assert measured.read_text(encoding="utf-8") == SCHEMA
    result = command("fidelity", "notes.xml", "--max-kl", "8", "--write")
    first = measured.read_bytes()

    assert result.exit_code == 0
    assert 'repair="first-8" written into the root element' in result.stdout
    assert first.decode().replace(' repair="first-8"', "") == SCHEMA
    measured.write_bytes(first.replace(b"first-8", b"slots"))
    assert command("fidelity", "notes.xml", "--max-kl", "8", "--write").exit_code == 0
    assert measured.read_bytes() == first


@pytest.mark.usefixtures("measured")
def test_a_picture_has_a_point_for_each_setting(command: Command, folder: Path) -> None:
    """A plot has every setting with its name; a target that was read is refused. --json does not draw unasked."""
    pytest.importorskip("matplotlib")
    drawn = command("fidelity", "notes.xml", "--svg", "notes.svg")
    refused = command("fidelity", "notes.xml", "--svg", "notes.xml")
    svg = (folder / "notes.svg").read_text(encoding="utf-8")

    assert command("fidelity", "notes.xml", "--json").exit_code == drawn.exit_code == 0
    assert not (folder / "notes-fidelity.svg").exists()
    assert command("fidelity", "notes.xml").stderr == "wrote notes-fidelity.svg\n"
    assert (folder / "notes-fidelity.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert svg.startswith("<?xml")
    assert all(f"<!-- {each.name} -->" in svg for each in MEASURED.settings)
    assert (refused.exit_code, "what is read" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "document",
    [
        '<schema name="s"/>',
        '<schema name="s" />',
        '<schema name="s"\n\tversion="1.0"\n>\n</schema>',
        "<schema name='s' context='guaranteed'>x</schema>",
        '<schema context = "guaranteed" name="s">context="guaranteed"</schema>',
        '\ufeff<?xml version="1.0"?>\r\n<!-- <schema context="x"> -->\r\n<schema name="s">é\r\n</schema>',
        '<schema name="s" separator=">">x</schema>',
    ],
)
def test_a_root_attribute_is_set_and_nothing_else(document: str) -> None:
    """Parsed, the document has the attribute; without it, it has the bytes that it had."""
    old = parse_schema(document.encode())
    changed = with_root_attribute(document.encode(), "context", "own")
    new = parse_schema(changed)

    assert (new.context, new.name, new.version, new.separator) == ("own", old.name, old.version, old.separator)
    start = document.index("<schema name") if "<!--" in document else 0
    assert without(document[start:]) == without(changed.decode()[start:])
    assert document[:start] == changed.decode()[:start]


def without(text: str) -> str:
    """Leave out the first attribute `context`."""
    return re.sub(r""" context ?= ?["'](guaranteed|own)["']""", "", text, count=1)


def test_the_demo_model_is_measured(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command measures a schema with the shipped model: computed again, a prompt is exact."""
    monkeypatch.setattr(import_module("promptcache.fidelity.measure"), "MIN_ROUNDS", 1)
    apart = SCHEMA.replace('version="1.0" >', 'version="1.0" context="guaranteed" repair="slots">')
    (folder / "notes.xml").write_text(apart, encoding="utf-8")
    words = ("fidelity", "notes.xml", "--prompts", "1", "--max-new-tokens", "2", "--setting", "repair=all", "--json")
    result = command(*words, "--device", "cpu", "--max-kl", "0")
    data = json.loads(result.stdout)

    assert [each["setting"] for each in data["settings"]] == ["as it is", "repair=all"]
    assert [each["name"] for each in data["prompts"]] == ["example 1", "random 1"]
    assert data["settings"][1]["exact"] == 1
    assert data["settings"][1]["divergence"]["value"] < data["settings"][0]["divergence"]["value"]
    assert result.exit_code == 1


def test_write_refuses_a_file_that_changed_meanwhile(
    command: Command, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was edited while it was measured stays as it is."""

    def edited(*_: object, **__: object) -> Fidelity:
        measured.write_text(SCHEMA + "<!-- new -->", encoding="utf-8")
        return MEASURED

    monkeypatch.setattr(import_module("promptcache.fidelity"), "measure_fidelity", edited)
    changed = command("fidelity", "notes.xml", "--max-kl", "8", "--write")

    assert (changed.exit_code, "was changed while it was measured" in changed.stderr) == (2, True)
    assert measured.read_text(encoding="utf-8") == SCHEMA + "<!-- new -->"
