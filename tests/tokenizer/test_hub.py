"""From the name of a model to its folder, and what the configuration in it declares."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from promptcache.diagnostics import ModelNotFound, UnsupportedModel
from promptcache.tokenizer import Dtype, model_folder, read_facts
from promptcache.tokenizer.hub import DEMO_FOLDER
from tests.hub import COMMIT, NOWHERE, fake_hub, without_network


@pytest.mark.long
def test_demo_and_folders_are_found_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`demo` and folders, `~` among them, lead to themselves."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()

    found = [model_folder(name) for name in ("demo", "~/model", tmp_path / "model")]

    assert found == [DEMO_FOLDER, tmp_path / "model", tmp_path / "model"]


@pytest.mark.long
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
    without_network(monkeypatch, tmp_path)

    with pytest.raises(ModelNotFound, match=message):
        model_folder(name)


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
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}
    words = [sys.executable, "-c", CODE, name]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


@pytest.mark.long
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


@pytest.mark.long
def test_an_unknown_hub_id_costs_one_request(tmp_path: Path) -> None:
    """A file that the hub does not have is reported at once, and not requested again."""
    with fake_hub("fake/demo", DEMO_FOLDER) as hub:
        (message, _), noise = found("nosuch", **hub.environment(tmp_path))

    assert "the hub has no such model" in message
    assert noise == ""
    assert [request for request in hub.requests if "nosuch" in request] == ["GET /api/models/nosuch"]


LLAMA = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}


@pytest.mark.parametrize(
    ("config", "token_bytes"),
    [
        (LLAMA, 2 * 4 * 2 * 8 * 4),
        (LLAMA | {"head_dim": 16, "dtype": "bfloat16"}, 2 * 4 * 2 * 16 * 2),
        (LLAMA | {"torch_dtype": "float16"}, 2 * 4 * 2 * 8 * 2),
        ({"n_layer": 2, "n_head": 4, "n_embd": 32}, 2 * 2 * 4 * 8 * 4),
        ({"text_config": LLAMA, "dtype": "bfloat16"}, 2 * 4 * 2 * 8 * 2),
    ],
    ids=["llama", "head_dim", "old dtype", "gpt2", "nested"],
)
def test_token_bytes_follow_the_configuration(tmp_path: Path, config: dict[str, Any], token_bytes: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert read_facts("m", tmp_path, Dtype.AUTO).token_bytes == token_bytes


def test_configuration_that_says_nothing_is_refused(tmp_path: Path) -> None:
    """A folder without config.json, and a configuration without layers and heads, are refused."""
    with pytest.raises(ModelNotFound):
        read_facts("m", tmp_path, Dtype.AUTO)
    for text in ("{}", "[]", "{", '{"num_hidden_layers": "many"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UnsupportedModel):
            read_facts("m", tmp_path, Dtype.AUTO)
