"""From the name of a model to its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from promptcache.diagnostics import ModelNotFound
from promptcache.tokenizer import model_folder
from promptcache.tokenizer.hub import DEMO_FOLDER
from tests.hub import COMMIT, NOWHERE, cache_model, fake_hub, without_network

pytestmark = pytest.mark.long


def test_demo_and_folders_are_found_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`demo` and folders, `~` among them, lead to themselves."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()

    found = [model_folder(name) for name in ("demo", "~/model", tmp_path / "model")]

    assert found == [DEMO_FOLDER, tmp_path / "model", tmp_path / "model"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "^model='' is not allowed: 'demo', a model's folder or a hub id is expected$"),
        ("./nowhere", "model folder './nowhere' does not exist"),
        ("~nobody-here/model", "model folder '~nobody-here/model' does not exist"),
        (Path("no/folder"), "model folder 'no/folder' does not exist"),
        ("no/such/folder", "nor a hub id"),
        ("spaces in it", "nor a hub id"),
        ("nosuch", "nor in the local cache; the hub cannot be reached: "),
    ],
)
def test_names_that_lead_nowhere_are_refused(
    name: str | Path, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what the name could not be."""
    without_network(monkeypatch, tmp_path)

    with pytest.raises(ModelNotFound, match=message):
        model_folder(name)


def test_the_local_cache_is_used_where_the_hub_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub id that was downloaded before gives its snapshot folder."""
    without_network(monkeypatch, tmp_path)
    snapshot = cache_model(tmp_path, "fake/demo", DEMO_FOLDER)

    assert model_folder("fake/demo") == snapshot


CODE = """
import sys
from promptcache.diagnostics import ModelNotFound
from promptcache.tokenizer import model_folder
try:
    print(model_folder(sys.argv[1]))
except ModelNotFound as error:
    print(error)
print([name for name in ("torch", "transformers") if name in sys.modules])
"""


def found(name: str, **environment: str) -> tuple[list[str], str]:
    """Return what `model_folder` prints in its own process, and its stderr."""
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}
    words = [sys.executable, "-c", CODE, name]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


def test_a_tokenizer_is_downloaded_without_the_weights(tmp_path: Path) -> None:
    """From the hub come the tokenizer and `config.json`, no weights; later the cache has them, network or not."""
    with fake_hub("fake/demo", DEMO_FOLDER) as hub:
        (first, loaded), noise = found("fake/demo", **hub.environment(tmp_path))
    again = found("fake/demo", **{**hub.environment(tmp_path), "HF_ENDPOINT": NOWHERE})

    assert Path(first).name == COMMIT
    assert {"config.json", "tokenizer.json"} <= {file.name for file in Path(first).iterdir()}
    assert not any("safetensors" in request for request in hub.requests)
    assert (loaded, noise) == ("[]", "")
    assert again == ([first, "[]"], "")


def test_an_unknown_hub_id_costs_one_request(tmp_path: Path) -> None:
    """A file that the hub does not have is reported at once, and not requested again."""
    with fake_hub("fake/demo", DEMO_FOLDER) as hub:
        (message, _), noise = found("nosuch", **hub.environment(tmp_path))

    assert "the hub has no such model" in message
    assert noise == ""
    assert [request for request in hub.requests if "nosuch" in request] == ["GET /api/models/nosuch"]
