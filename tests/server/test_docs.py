"""docs/serving.md and docs/scaling.md: their examples run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.server.conftest import Served

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
