"""Fingerprints change exactly with the KV of a model, and weights are not read twice for one."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from promptcache import Engine
from promptcache.model import fingerprint
from promptcache.tokenizer import DEMO_FOLDER

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with the demo tokenizer, in a folder."""
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
    """A copy of that folder for one test."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of recorded digests; small models and fresh files are recorded too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprint, "MIN_BYTES", 0)
    monkeypatch.setattr(fingerprint, "SETTLED_S", 0.0)
    return tmp_path / "cache" / "promptcache" / "weights"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all weights that were read for a fingerprint."""
    sizes: list[int] = []
    digest = fingerprint.tensor_digest

    def counted(tensor: torch.Tensor) -> str:
        sizes.append(tensor.nbytes)
        return digest(tensor)

    monkeypatch.setattr(fingerprint, "tensor_digest", counted)
    return sizes


def loaded(folder: Path, **options: object) -> str:
    """Return the fingerprint of a model and tokenizer in an engine."""
    return Engine.from_pretrained(folder, device="cpu", **options).fingerprint  # type: ignore[arg-type] # any option


def flip_a_weight(folder: Path) -> None:
    """Change one bit of the last weight, and restore the time of modification."""
    path = folder / "model.safetensors"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def set_in(name: str, change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    """Return a change of a JSON file."""

    def changed(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        change(data)
        (folder / name).write_text(json.dumps(data))

    return changed


def another_template(folder: Path) -> None:
    """Change the chat template."""
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + " ")


def scale_rope(config: dict[str, object]) -> None:
    """Stretch positions."""
    config["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}


CHANGES = {
    "a bit of a weight": flip_a_weight,
    "RoPE": set_in("config.json", scale_rope),
    "norm": set_in("config.json", lambda config: config.update(rms_norm_eps=0.5)),
    "vocabulary": set_in("tokenizer.json", lambda data: data.update(normalizer={"type": "Lowercase"})),
    "chat template": another_template,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_kv_changes_the_fingerprint(folder: Path, records: Path, change: str) -> None:
    """A changed weight, setting, tokenizer or template gives another fingerprint, also after a record was made."""
    before = loaded(folder)
    assert loaded(folder) == before
    CHANGES[change](folder)

    assert loaded(folder) != before


def test_another_dtype_is_another_fingerprint(folder: Path, records: Path) -> None:
    """Each dtype has its own fingerprint, in any order of loading."""
    prints = [loaded(folder, dtype=dtype) for dtype in ("float32", "bfloat16", "float32", "bfloat16")]

    assert prints[0] == prints[2] != prints[1] == prints[3]


def test_another_context_length_matters_where_rope_depends_on_it(folder: Path, records: Path) -> None:
    """Dynamic RoPE is pinned to the context length, which the fingerprint includes."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    set_in("config.json", lambda config: config.update(rope_parameters=rope))(folder)

    assert loaded(folder, context_length=1024) != loaded(folder, context_length=2048)


def test_names_and_copies_do_not_matter(folder: Path, tmp_path: Path, records: Path) -> None:
    """A copy of the folder under another name has the same fingerprint."""
    assert loaded(folder) == loaded(Path(shutil.copytree(folder, tmp_path / "copy")))


def test_weights_are_read_once_for_each_state_of_their_folder(folder: Path, records: Path, read: list[int]) -> None:
    """Later starts read no weight; a change of any file makes the next one read them all."""
    first = loaded(folder)
    once = len(read)
    assert loaded(folder) == first
    assert len(read) == once > 0

    flip_a_weight(folder)
    assert loaded(folder) != first
    assert len(read) == 2 * once


def test_a_file_replaced_by_one_of_the_same_size_and_times_is_seen(folder: Path, records: Path) -> None:
    """A replaced file has another inode and change time, even with the same modification time."""
    before = loaded(folder)
    path, other = folder / "model.safetensors", folder / "other"
    shutil.copy2(path, other)
    other.rename(path)
    flip_a_weight(folder)

    assert loaded(folder) != before


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(path.read_text().replace('"weights": "', '"weights": "0')),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
    ids=["empty", "no record", "too deep", "changed", "no text", "a folder", "a pipe"],
)
def test_a_damaged_record_is_no_record(
    folder: Path, records: Path, read: list[int], damage: Callable[[Path], object]
) -> None:
    """With a damaged record the fingerprint is right, and the weights are read once more."""
    first, once = loaded(folder), len(read)
    (record,) = records.iterdir()
    damage(record)

    assert loaded(folder) == first
    assert len(read) == 2 * once


def test_no_place_to_remember_costs_only_time(
    folder: Path, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the cache folder cannot be written, every start reads the weights."""
    first = loaded(folder)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert loaded(folder) == first


def test_weights_changed_in_memory_are_not_recalled(folder: Path, records: Path) -> None:
    """Weights that change after loading get another fingerprint, and no record."""
    prints = []
    for factor in (1, 2, 1):
        loading = fingerprint.WeightsLoading.begin(folder)
        model = LlamaForCausalLM.from_pretrained(folder)
        found = loading.finish(model, {})
        with torch.no_grad():
            if factor != 1:
                next(model.parameters()).mul_(factor)
        prints.append(fingerprint.model_fingerprint(model, "", found))

    assert prints[0] == prints[2] != prints[1]


def test_files_that_may_still_change_are_not_remembered(
    folder: Path, records: Path, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files written a moment ago are not recorded: they may change within the same clock tick of the file system."""
    monkeypatch.setattr(fingerprint, "SETTLED_S", 3600.0)
    loaded(folder)
    once = len(read)
    loaded(folder)

    assert len(read) == 2 * once
    assert not records.exists()


def test_writers_at_once_leave_one_whole_record(folder: Path, records: Path) -> None:
    """With concurrent writers a record is complete at every moment."""
    loading = fingerprint.WeightsLoading.begin(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    weights, found = model.state_dict(), loading.finish(model, {})
    assert found is not None
    found.remember(weights, "f" * 64)
    seen = []

    def work() -> None:
        for _ in range(50):
            found.remember(weights, "f" * 64)
            seen.append(found.recall(weights))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {"f" * 64}
    assert [path.suffix for path in records.iterdir()] == [".json"]


def test_weights_of_inference_mode_are_not_remembered(folder: Path, records: Path) -> None:
    """Inference tensors have no version counter, so their digest is not recorded."""
    loading = fingerprint.WeightsLoading.begin(folder)
    with torch.inference_mode():
        model = torch.nn.Linear(3, 3)

    assert loading.finish(model, {}) is None
