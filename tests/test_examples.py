"""Every example in the repository runs: schemas, prompts, scripts, and the README's own code."""

import json
import re
import runpy
from functools import cache
from pathlib import Path

import pytest
import torch

from promptcache.engine import Engine
from promptcache.language import Doc, Prompt, Schema, check_schema, resolve_prompt
from tests import notebook

ROOT = Path(__file__).parents[1]
SCHEMAS = sorted([*ROOT.glob("schemas/*.xml"), *ROOT.glob("examples/*/guide.xml")])
MEASURED = re.compile(r"\d[\d,]*(?:\.\d+|(?= times| ms))")
PROMPTS = sorted(path for path in ROOT.glob("examples/*/*.xml") if path not in SCHEMAS)
SCRIPTS = sorted(path for path in ROOT.glob("examples/*.py") if path.stem != "web_application")  # tested by itself


@cache
def engine() -> Engine:
    """The demo model with every schema of the repository."""
    made = Engine.from_pretrained("demo")
    for path in SCHEMAS:
        made.add_schema(path)
    return made


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_schemas_have_no_findings(path: Path) -> None:
    """A schema that people start from has neither errors nor warnings."""
    assert check_schema(Schema.from_file(path)).warnings == ()


@pytest.mark.parametrize("path", sorted(ROOT.glob("schemas/*.xml")), ids=lambda path: path.stem)
def test_schemas_show_how_they_are_used(path: Path) -> None:
    """Each shipped schema has a description, a valid example, an invalid one and a prompt."""
    schema = check_schema(Schema.from_file(path))

    assert any(isinstance(child, Doc) for child in schema.source.children)
    assert {example.valid for example in schema.examples} == {True, False}
    assert any(Prompt.from_file(prompt).schema == schema.name for prompt in PROMPTS)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("documents/ferry", "The captain of the ferry is Ivo Brandt."),
        ("classifier/parcel", "The label of the parcel message is shipping."),
        ("handbook/sauna", "The closing hour of the sauna is ten."),
        ("tutor/mars", "The largest moon of Saturn is Titan."),
    ],
)
def test_the_demo_model_answers_where_it_is_said_to(path: str, answer: str) -> None:
    """Prompts within worlds of facts are answered from their modules."""
    assert engine().generate(ROOT / f"examples/{path}.xml", max_new_tokens=24, do_sample=False).text == answer


@pytest.mark.parametrize("path", PROMPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_prompts_can_be_answered(path: Path) -> None:
    """Every prompt is valid for its schema, and the model has room for it."""
    prompt = Prompt.from_file(path)
    resolve_prompt(prompt, engine().schemas[prompt.schema])

    assert engine().plan(path).num_new_tokens > 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every script runs from the repository as it is."""
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(path), run_name="__main__")


def test_the_web_application_serves_ten_clients_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """Nine get their own answers, a mistake gets 400, and a client that reads at the end gets its whole answer."""
    runpy.run_path(str(ROOT / "examples/web_application.py"), run_name="__main__")

    *served, ending = capsys.readouterr().out.splitlines()
    airports = ("Miami is Palm Field", "Paris is Orly", "Tokyo is Haneda")
    whole = '200 {"text":"The best dish of Miami is stone crab.","reused":105}'
    assert sorted(served[:-1])[:9] == sorted(f"200 The airport of {each}." for each in airports * 3)
    assert [each for each in served if each.startswith("400")] == [
        """400 {"error":"use('maimi'): PC401 there is no module 'maimi' at the top level (did you mean 'miami'?)"}"""
    ]
    assert served[-1] == whole
    assert ending == "ending: The best dish of Paris is onion soup."


@pytest.mark.parametrize("page", ["README.md", "docs/keeping.md", "docs/python.md", "docs/retrieval.md"])
def test_pages_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    """The Python blocks of a page run in order, in one namespace, beside the schemas that they name."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "schemas").symlink_to(ROOT / "schemas")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}

    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), namespace)  # without the future imports of this file

    assert blocks
    if page == "README.md":
        (printed,) = re.findall(r"\nprints\n\n```\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
        assert capsys.readouterr().out.startswith(printed)


def test_the_tour_shows_what_its_cells_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored outputs of the notebook are those of a run. Times may differ, and figures with decimals."""
    stored = notebook.read(notebook.TOUR)
    monkeypatch.chdir(notebook.TOUR.parent)
    num_threads = torch.get_num_threads()
    try:
        shown = notebook.outputs(stored)
    finally:
        torch.set_num_threads(num_threads)

    outputs = [cell["outputs"] for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert MEASURED.sub("N", json.dumps(shown)) == MEASURED.sub("N", json.dumps(outputs))
    assert notebook.TOUR.stat().st_size < 300_000
