"""The forms in which `promptcache check` writes what it found."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("folder")


def sarif_run(command: Command, *words: str) -> dict[str, Any]:
    """The one run of the SARIF log that `check` writes."""
    log = json.loads(command("check", *words, "--format", "sarif").stdout)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


def test_json_is_a_format(command: Command) -> None:
    """--json and --format json are the same."""
    assert (
        command("check", "prompts/typo.xml", "--json").stdout
        == command("check", "prompts/typo.xml", "--format", "json").stdout
    )


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
@pytest.mark.parametrize(("file", "code"), [("travel.xml", 0), ("dead.xml", 0), ("prompts/typo.xml", 1), ("gone", 3)])
def test_exit_code_does_not_depend_on_the_form(command: Command, form: str, file: str, code: int) -> None:
    """Whatever the form, the exit code says what was found."""
    assert command("check", file, "--format", form).exit_code == code


def test_two_forms_are_refused(command: Command) -> None:
    """--json together with another format is a mistake of usage."""
    result = command("check", "travel.xml", "--json", "--format", "sarif")

    assert result.exit_code == 2


def test_github_annotates_each_finding(command: Command) -> None:
    """A finding is one workflow command with its file, lines and columns, the last column being part of the place."""
    result = command("check", "prompts/typo.xml", "--format", "github")

    assert result.stdout == (
        "::error title=PC401,file=prompts/typo.xml,line=2,endLine=2,col=4,endColumn=7"
        "::there is no module 'plam' at the top level%0Adid you mean <plan>?\n"
    )


def test_github_knows_warnings_and_notes(command: Command) -> None:
    """Warnings and notes have commands of their own, and no findings are no output."""
    assert command("check", "dead.xml", "--format", "github").stdout.startswith("::warning title=PC302,")
    lines = command("check", "prompts/broken.xml", "--format", "github").stdout.splitlines()
    assert any(line.startswith("::notice file=prompts/broken.xml::schema broken.xml has errors") for line in lines)
    assert command("check", "travel.xml", "--format", "github").stdout == ""


def test_github_commands_cannot_be_forged(command: Command, folder: Path) -> None:
    """No text of a document or name of a file ends a command or begins another."""
    name = "a,b::c%\n::error::x.xml"
    (folder / name).write_text('<prompt schema="travel"><plan days="3"\n\nday:s="2"/></prompt>')

    lines = command("check", name, "--format", "github").stdout.splitlines()

    assert len(lines) == 1
    assert "file=a%2Cb%3A%3Ac%25%0A%3A%3Aerror%3A%3Ax.xml," in lines[0]


def test_sarif_names_the_tool_and_its_rules(command: Command) -> None:
    """The driver has a name, a version, and a rule with a description and help for every code that was found."""
    driver = sarif_run(command, "prompts/typo.xml", "dead.xml")["tool"]["driver"]

    assert driver["name"] == "promptcache"
    assert re.match(r"\d+\.\d+", driver["version"])
    assert [rule["id"] for rule in driver["rules"]] == ["PC302", "PC401"]
    assert [rule["defaultConfiguration"]["level"] for rule in driver["rules"]] == ["warning", "error"]
    assert all(rule["shortDescription"]["text"] and rule["help"]["text"] for rule in driver["rules"])


def test_sarif_results_point_at_their_rules_and_regions(command: Command) -> None:
    """A result has its rule, its level, a message, and a region that ends behind its last character."""
    run = sarif_run(command, "prompts/typo.xml", "dead.xml")
    rules = run["tool"]["driver"]["rules"]
    result = next(result for result in run["results"] if result["ruleId"] == "PC401")

    assert run["columnKind"] == "unicodeCodePoints"
    assert all(rules[each["ruleIndex"]]["id"] == each["ruleId"] for each in run["results"])
    assert result["level"] == "error"
    assert result["message"]["text"] == "there is no module 'plam' at the top level\ndid you mean <plan>?"
    assert result["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "prompts/typo.xml"},
                "region": {"startLine": 2, "startColumn": 4, "endLine": 2, "endColumn": 8},
            }
        }
    ]


def test_sarif_relates_further_places(command: Command) -> None:
    """Related places have numbers of their own, messages and regions."""
    (result,) = sarif_run(command, "dead.xml")["results"]

    assert [each["id"] for each in result["relatedLocations"]] == [1, 2]
    assert all(each["message"]["text"] for each in result["relatedLocations"])
    assert all(each["physicalLocation"]["region"]["startLine"] == 1 for each in result["relatedLocations"])


def test_sarif_says_when_the_run_was_not_complete(command: Command) -> None:
    """A file that cannot be read makes the run unsuccessful; a note is a notification."""
    failed = sarif_run(command, "gone.xml")["invocations"][0]
    noted = sarif_run(command, "prompts/broken.xml")["invocations"][0]

    assert failed["executionSuccessful"] is False
    assert noted["executionSuccessful"] is True
    assert "schema broken.xml has errors" in noted["toolExecutionNotifications"][0]["message"]["text"]


def test_sarif_writes_files_as_uris(command: Command, folder: Path) -> None:
    """Names are relative references with escapes, byte by byte where they are not UTF-8; absolute ones file URIs."""
    (folder / "a b%.xml").write_text("<schema/>")
    latin = os.fsdecode(b"caf\xe9.xml")
    (folder / latin).write_text("<schema/>")

    for name, uri in [
        ("a b%.xml", "a%20b%25.xml"),
        (latin, "caf%E9.xml"),
        (str(folder / "a b%.xml"), f"{folder.as_uri()}/a%20b%25.xml"),
        (str(folder / latin), f"{folder.as_uri()}/caf%E9.xml"),
    ]:
        result = sarif_run(command, name)["results"][0]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
