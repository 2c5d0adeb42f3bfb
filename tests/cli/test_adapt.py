"""`promptcache adapt`: a short training with a tiny model, commands that use its adapter, and refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from promptcache.cli.adapt import idle_cores
from promptcache.tokenizer import DEMO_FOLDER
from tests.adapt.conftest import SCHEMA
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a tiny model with the demo model's tokenizer; torch's number of threads is left alone."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    shutil.copytree(DEMO_FOLDER, folder / "tiny", ignore=shutil.ignore_patterns("*.safetensors"))
    config = LlamaConfig.from_pretrained(folder / "tiny")
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = 2, 16, 16
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim = 8
    hf: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.ndim > 1:
                weight.mul_(8)  # with the usual small weights, modules change nothing
    hf.save_pretrained(folder / "tiny")
    return folder / "tiny"


def test_a_training_and_its_use(command: Command, tiny: Path) -> None:
    """The command trains, shows its progress and figures, continues, and other commands take the adapter."""
    Path("club.xml").write_text(SCHEMA)
    words = ("adapt", "club.xml", "--model", "tiny", "--out", "out", "--threads", "1", "--rank", "4")

    first = command(*words, "--steps", "2")
    second = command(*words, "--steps", "3", "--json")

    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    lines = first.stdout.splitlines()
    assert re.fullmatch(r"out: 2 steps with 4 prompts in 0\.\d minutes", lines[0])
    assert re.fullmatch(r"24 held-out prompts +before +after", lines[1])
    assert [re.sub(r" +[\d.]+ +[\d.]+$", "", line) for line in lines[2:5]] == [
        "KL of modular answers, millinats",
        "same token, %",
        "distance of KV, relative",
    ]
    assert lines[5] == "use it with --model tiny --adapter out"
    assert "answering held-out prompts (0/24)\n" in first.stderr
    assert "training, step 1 (0/2)\n" in first.stderr
    assert "training, step 3" in second.stderr
    report = json.loads(second.stdout)
    assert (report["model"], report["out"], report["num_steps"]) == ("tiny", "out", 3)
    assert report["before"]["divergence"] > 0
    names = {each.name for each in (tiny.parent / "out").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "checkpoint.pt", "report.json"} <= names
    for use in (
        ("run", "prompts/miami.xml", "--max-new-tokens", "2"),
        ("fidelity", "club.xml", "--prompts", "1", "--setting", "sees=nothing", "--max-new-tokens", "2"),
        ("warm", "club.xml", "--store", "kv"),
        ("audit", "prompts/miami.xml", "--max-new-tokens", "2"),
    ):
        result = command(*use, "--model", "tiny", "--adapter", "out")
        assert result.exit_code == 0, result.output


def test_an_estimate_counts_pairs_with_and_without_the_adapter(command: Command, tiny: Path) -> None:
    """`warm --budget` says the tokens and bytes that `warm` then makes with an adapter."""
    Path("open.xml").write_text(SCHEMA.replace(' sees="stand-ins"', ""))
    assert (
        command("adapt", "open.xml", "--model", "tiny", "--out", "out", "--steps", "1", "--threads", "1").exit_code == 0
    )
    words = ("warm", "open.xml", "--model", "tiny", "--device", "cpu", "--store", "kv", "--json")

    results = [
        command(*words, *more) for more in (("--budget",), ("--adapter", "out", "--budget"), ("--adapter", "out"))
    ]
    (plain,), (estimate,), (made,) = (json.loads(each.stdout)["schemas"] for each in results)

    assert (made["num_encodings"], made["nbytes"]) == (estimate["num_encodings"], estimate["nbytes"])
    assert made["num_encodings"] > plain["num_encodings"]


def test_synthetic_documents_need_no_schema(command: Command, tiny: Path) -> None:
    """Without schemas, synthetic documents and the user's texts are learned from."""
    Path("book.txt").write_text(
        "\n\n".join(f"This is paragraph {number} of a very short book." for number in range(12))
    )

    result = command(
        *("adapt", "--model", "tiny", "--out", "out", "--steps", "1", "--threads", "1", "--texts", "book.txt")
    )

    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--minutes", "1", "--steps", "1"), 2, "leave one out"),
        (("--steps", "0"), 2, "--steps"),
        (("broken.xml",), 1, "PC208"),
        (("--texts", "nothing.txt"), 3, "nothing.txt"),
        (("--out", "prompts"), 2, "has other files and no checkpoint"),
        (("--model", "nowhere/model"), 3, "nowhere/model"),
    ],
    ids=["both lengths", "no steps", "broken schema", "no text", "other folder", "no model"],
)
def test_mistakes_are_refused(command: Command, words: tuple[str, ...], code: int, message: str) -> None:
    """Mistakes end the command before anything is trained."""
    result = command("adapt", "--out", "out", *words)

    assert result.exit_code == code
    assert message in result.output
    assert not Path("out").exists()


def test_a_schema_in_which_no_adapter_takes_part_is_refused(command: Command) -> None:
    """The command ends before anything is trained, and the error says what to write."""
    Path("club.xml").write_text(SCHEMA.replace("stand-ins", "nothing"))

    result = command("adapt", "club.xml", "--out", "out")

    assert result.exit_code == 2
    assert 'write sees="previous" on the schema' in result.output
    assert not Path("out").exists()


@pytest.mark.parametrize(("load", "threads"), [(0.2, 4), (2.6, 1), (1.6, 2), (9.0, 1)])
def test_threads_are_those_of_idle_cores(monkeypatch: pytest.MonkeyPatch, load: float, threads: int) -> None:
    """By default there is a thread for each core that is idle, and at least one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)

    assert idle_cores() == threads
