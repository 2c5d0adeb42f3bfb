"""`promptcache audit`, with the model that ships in the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from lxml import html

from tests.cli.conftest import Command

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.long]

OPTIONS = ("prompts/miami.xml", "--device", "cpu", "--max-new-tokens", "3")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets this for its own process; other tests keep theirs."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def test_tables_show_what_the_json_has(command: Command) -> None:
    """Each cause and module has a line with its millinats; JSON has the same in nats."""
    text, data = command("audit", *OPTIONS), json.loads(command("audit", *OPTIONS, "--json").stdout)
    lines = {line.split()[0]: line.split()[1] for line in text.stdout.splitlines() if line.startswith("  ")}

    assert (text.exit_code, text.stderr) == (0, "")
    assert re.match(rf"travel  modular · {1000 * data['divergence']:.1f} millinats from plain prefill", text.stdout)
    assert sum(each["share"] for each in data["rungs"]) == pytest.approx(data["divergence"])
    for each in data["rungs"]:
        assert lines[each["cause"]] == f"{round(1000 * each['share'], 1) + 0.0:.1f}"
    for each in data["modules"]:
        assert lines[each["module"] or "(root)"] == f"{round(1000 * each['gain'], 1) + 0.0:.1f}"
    assert len(re.findall("price: ", text.stdout)) == len(data["advice"])


def test_arguments_and_faults_are_those_of_run(command: Command) -> None:
    """`--arg` fills a parameter, `--repair` computes again, and a prompt with faults ends before the model is loaded."""
    filled = json.loads(command("audit", *OPTIONS, "--arg", "plan.days=five", "--json").stdout)
    repaired = json.loads(command("audit", *OPTIONS, "--repair", "all", "--json").stdout)
    wrong = command("audit", "prompts/typo.xml")

    assert filled["schema"] == {"name": "travel", "file": "travel.xml"}
    assert repaired["level"] == "exact"
    assert repaired["rungs"][-1]["share"] == pytest.approx(0, abs=1e-6)
    assert wrong.exit_code == 1
    assert "PC401" in f"{wrong.stdout}{wrong.stderr}"


def test_a_page_shows_what_the_json_has(command: Command, folder: Path) -> None:
    """`--html` writes a page with each number; a target that was read is refused."""
    data = json.loads(command("audit", *OPTIONS, "--html", "audit.html", "--json").stdout)
    page = html.document_fromstring((folder / "audit.html").read_bytes())
    numbers = [each.text for each in page.find_class("num")]
    refused = command("audit", *OPTIONS, "--html", "travel.xml")

    shown = [*(each["share"] for each in data["rungs"]), *(each["gain"] for each in data["modules"])]
    assert numbers == [f"{round(1000 * each, 1) + 0.0:.1f}" for each in shown]
    assert not page.xpath("//script")
    assert (refused.exit_code, "what is read" in refused.stderr) == (2, True)
