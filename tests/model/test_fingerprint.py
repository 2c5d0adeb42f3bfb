"""Fingerprints change exactly with the KV of a model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from promptcache import Engine
from promptcache.tokenizer import DEMO_FOLDER

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig.from_pretrained(DEMO_FOLDER)
    for name, size in {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8}.items():
        setattr(config, name, size)
    config.num_hidden_layers = config.num_attention_heads = config.num_key_value_heads = 2
    torch.manual_seed(0)
    LlamaForCausalLM(config).half().save_pretrained(folder)
    for path in Path(DEMO_FOLDER).iterdir():
        if path.name.startswith(("tokenizer", "chat_template")):
            shutil.copy(path, folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def loaded(folder: Path, **options: object) -> str:
    return Engine.from_pretrained(folder, device="cpu", **options).fingerprint  # type: ignore[arg-type] # any option


def flip_a_weight(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def set_in(name: str, change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        change(data)
        (folder / name).write_text(json.dumps(data))

    return changed


def scale_rope(config: dict[str, object]) -> None:
    config["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}


CHANGES = {
    "a bit of a weight": flip_a_weight,
    "RoPE": set_in("config.json", scale_rope),
    "norm": set_in("config.json", lambda config: config.update(rms_norm_eps=0.5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_kv_changes_the_fingerprint(folder: Path, change: str) -> None:
    before = loaded(folder)
    assert loaded(folder) == before
    CHANGES[change](folder)

    assert loaded(folder) != before


def test_another_dtype_is_another_fingerprint(folder: Path) -> None:
    prints = [loaded(folder, dtype=dtype) for dtype in ("float32", "bfloat16", "float32", "bfloat16")]

    assert prints[0] == prints[2] != prints[1] == prints[3]


def test_another_context_length_matters_where_rope_depends_on_it(folder: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    set_in("config.json", lambda config: config.update(rope_parameters=rope))(folder)

    assert loaded(folder, context_length=1024) != loaded(folder, context_length=2048)


def test_names_and_copies_do_not_matter(folder: Path, tmp_path: Path) -> None:
    assert loaded(folder) == loaded(Path(shutil.copytree(folder, tmp_path / "copy")))
