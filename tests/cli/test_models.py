"""The model that a command names: the demo model, a folder, or a hub id."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers.models.auto import auto_factory

from promptcache.tokenizer import DEMO_FOLDER
from tests.cli.conftest import Command
from tests.hub import COMMIT, cache_model, fake_hub, without_network

LIGHT = [
    "layout travel.xml",
    "render prompts/miami.xml",
    "layout travel.xml --against travel.xml",
    "test travel.xml",
    "warm travel.xml --estimate",
]


@pytest.mark.parametrize("words", LIGHT)
def test_commands_take_a_hub_id_and_read_no_weights(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A model from the local cache is read as its folder is; what needs its tokenizer only does without its weights."""
    without_network(monkeypatch, folder / "hub")
    snapshot = cache_model(folder / "hub", "fake/demo", DEMO_FOLDER)
    (snapshot / "model.safetensors").unlink()
    model = [] if words.startswith("test") else ["--model", "fake/demo"]

    named, default = command(*words.split(), *model), command(*words.split())

    assert (named.exit_code, default.exit_code) == (0, 0), named.output
    assert named.output.replace("fake/demo", "demo") == default.output


def test_run_takes_a_hub_id_without_network(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in the local cache is loaded without the hub, and without a warning."""
    without_network(monkeypatch, folder / "hub")
    cache_model(folder / "hub", "fake/demo", DEMO_FOLDER)
    asked = []
    monkeypatch.setattr(auto_factory, "is_peft_available", lambda: True)
    monkeypatch.setattr(auto_factory, "find_adapter_config_file", lambda *_, **options: asked.append(options))

    result = command("run", "prompts/miami.xml", "--max-new-tokens", "2", "--model", "fake/demo")

    assert result.exit_code == 0, result.output
    assert "huggingface" not in result.output
    assert [each["local_files_only"] for each in asked] == [True]  # asking the hub took 20 seconds


EVERY = [*LIGHT, "run prompts/miami.xml", "warm travel.xml --store kept"]


@pytest.mark.parametrize(
    ("words", "model", "message"),
    [
        *((words, "./nosuch", "error: model folder './nosuch' does not exist; give a folder with ") for words in EVERY),
        (
            EVERY[0],
            "nosuch",
            "error: model 'nosuch' is neither 'demo', nor a folder here, nor in the local cache; the hub cannot ",
        ),
        (
            EVERY[0],
            "some/where.gguf",
            "error: 'some/where.gguf' is a model for llama.cpp, which this library does not read; ",
        ),
        (EVERY[0], "travel.xml", "error: model 'travel.xml' is a file; give the folder with config.json, or a hub id"),
    ],
)
def test_a_model_that_is_not_there_is_reported_alike_by_all(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, words: str, model: str, message: str
) -> None:
    """Every command ends at once, with one line and the exit code of the environment."""
    without_network(monkeypatch, folder / "hub")

    result = command(*words.split(), "--model", model)

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert result.stderr.startswith(message)


@pytest.mark.slow
def test_a_model_is_downloaded_where_there_is_a_network(folder: Path) -> None:
    """`run` downloads a missing model, and shows no progress bars if stderr is no terminal."""
    with fake_hub("fake/demo", DEMO_FOLDER) as hub:
        done = subprocess.run(
            [sys.executable, "-m", "promptcache", "run", "prompts/miami.xml", "--model", "fake/demo"],
            env={**os.environ, **hub.environment(folder / "home")},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("reused ")
    assert "GET /fake/demo/resolve/main/model.safetensors" in {
        request.replace(COMMIT, "main") for request in hub.requests
    }
