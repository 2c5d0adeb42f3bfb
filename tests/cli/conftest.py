"""A folder of small documents to run commands in, and the commands themselves."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from promptcache.cli.app import app

Command = Callable[..., Result]

TRAVEL = """\
<schema name="travel" repair="slots">
  <system>
    You plan trips.
    <module name="plan"><parameter name="days" length="6"/> days.</module>
    <union name="city">
      <module name="miami">The beach. <parameter name="hotel" length="4" default="any"/></module>
      <module name="paris">The Louvre. <parameter name="hotel" length="4"/></module>
    </union>
  </system>
</schema>
"""

DOCUMENTS = {
    "travel.xml": TRAVEL,
    "support.xml": '<schema name="support"><module name="faq" required="true">Ask.</module></schema>',
    "broken.xml": '<schema name="broken"><module name="a" requires="b"/></schema>',
    "dead.xml": '<schema name="dead"><module name="a" requires="b">x</module><module name="b" excludes="a">y</module></schema>',
    "prompts/miami.xml": '<prompt schema="travel"><plan days="3"/><miami/><user>Plan it.</user></prompt>',
    "prompts/typo.xml": '<prompt schema="travel">\n  <plam days="3"/>\n</prompt>',
    "prompts/broken.xml": '<prompt schema="broken"><a/></prompt>',
    "prompts/lost.xml": '<prompt schema="nowhere"><a/></prompt>',
}


@pytest.fixture(scope="package", autouse=True)
def _demo_model_once() -> Iterator[None]:
    """Load and test the demo model once for each way of loading it: half a second in each of 150 commands.

    Other tests load a model of their own: engines pack its weights, or change them.
    """
    from promptcache import engine

    load, check = engine.load_model, engine.check_linking
    loaded, made, checked = cache(load), cache(engine.as_model), cache(check)

    def load_once(name: Any, **options: Any) -> Any:
        is_known = name == "demo" and options.get("device") in (None, "cpu")
        return (loaded if is_known else load)(name, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "load_model", load_once)
        patched.setattr(engine, "as_model", made)
        patched.setattr(engine, "check_linking", checked)
        yield


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands set this for their own process; other tests keep theirs."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with `DOCUMENTS`."""
    for name, text in DOCUMENTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(result: Result) -> Any:
    """Return the JSON that a command wrote."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def command() -> Command:
    """Runs `promptcache` in this process."""

    def run(*words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(words), input=stdin)

    return run
