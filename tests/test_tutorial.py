"""docs/tutorial.md can be followed: its files, edits, commands and code in order give what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from promptcache.cli.app import app

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
STEP = re.compile(
    r"(?:^(?P<before>(?!```)[^\n]+(?:\n[^\n]+)*)\n\n)?^```(?P<language>xml|console|python)\n(?P<text>.*?)```$"
    r"(?:\n\nprints\n\n```\n(?P<printed>.*?)```$)?",
    re.DOTALL | re.MULTILINE,
)
MEASURED = re.compile(r"\d+\.\d+ (ms|s)\b")


def edited(schema: str, change: str) -> str:
    """Return a schema with a fragment of the page: in place of the line or module that it changes, or added."""
    name = re.match(r' *<module name="(\w+)"', change)
    if name is None and "<parameter" in change:
        return re.sub(rf"^ *{' '.join(change.split()[:6])}.*\n", lambda _: change, schema, flags=re.MULTILINE)
    if name is None:
        return schema.replace("</schema>", f"{change}</schema>")
    stop = r".*?</module>\n" if "</module>" in change else r"[^\n]*\n"
    old = re.compile(rf'^ *<module name="{name[1]}"{stop}', re.DOTALL | re.MULTILINE)
    return (
        old.sub(lambda _: change, schema) if old.search(schema) else schema.replace("  </user>", f"{change}  </user>")
    )


def save(before: str, text: str) -> None:
    """Write the document that the line before it names, or make the edit in the schema and its changed copy."""
    named = [Path(name) for name in re.findall(r"`(\w+\.xml)`", before)]
    if text.startswith(("<schema", "<prompt")):
        named[-1].write_text(text, encoding="utf-8")
        return
    if "changed schema" in before:
        named[0].write_text(Path("ferries.xml").read_text(encoding="utf-8"), encoding="utf-8")
    for path in [named[0]] if "changed schema" in before else [Path("ferries.xml"), Path("next.xml")]:
        if path.exists():
            path.write_text(edited(path.read_text(encoding="utf-8"), text), encoding="utf-8")


def run_command(text: str) -> str:
    """Return a session with what its command prints."""
    words = shlex.split(text.splitlines()[0].removeprefix("$ promptcache "))
    result = CliRunner().invoke(app, words)
    return f"{text.splitlines()[0]}\n{result.stdout}{result.stderr}".rstrip("\n") + "\n"


def run_code(text: str, namespace: dict[str, object]) -> None:
    """Run a block, and then the tests that it defines."""
    known = set(namespace)
    exec(compile(text, "tutorial.md", "exec"), namespace)
    for name, each in list(namespace.items()):
        if name.startswith("test_") and name not in known and callable(each):
            each()


def test_the_tutorial_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every step gives what the page shows; times differ."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    shown, found = [], []

    for step in STEP.finditer(PAGE):
        text = step["text"]
        if step["language"] == "xml":
            save(step["before"] or "", text)
        elif step["language"] == "console":
            shown.append(MEASURED.sub(r"N \1", text))
            found.append(MEASURED.sub(r"N \1", run_command(text)))
        else:
            run_code(text, namespace)
            shown.append(step["printed"] or "")
            found.append(capsys.readouterr().out)

    assert found == shown
